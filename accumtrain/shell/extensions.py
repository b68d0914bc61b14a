"""Installed packages that add choices: their modules register rows when they are imported."""

from __future__ import annotations

from importlib.metadata import entry_points

from accumtrain.errors import ConfigError
from accumtrain.process.program import EXTENSIONS


def load_extensions() -> None:
    """Imports every module, or calls every function, that an installed package names in the entry point group.

    Raises:
        ConfigError: an extension can't be imported, or fails.
    """
    for point in entry_points(group=EXTENSIONS):
        try:
            extension = point.load()
            if callable(extension):
                extension()
        except Exception as error:
            raise ConfigError(
                f"the installed extension {point.name} ({point.value}) fails: {type(error).__name__}: {error}; "
                f"mend it, or uninstall {point.dist.name if point.dist else 'its package'}"
            ) from error
