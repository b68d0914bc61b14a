"""What of Hydra's own configuration a command may change: the launcher and the sweeper of a sweep, nothing else.

Hydra makes folders, writes logs, imports modules and calls functions that its configuration names. None of that is
left to a configuration: every one that is composed, of a run or of a job of a sweep, passes here first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from accumtrain.errors import ConfigError
from accumtrain.kinds.values import show
from accumtrain.shell.hydra_errors import composing

OPEN_KEYS = re.compile(r"hydra[./](launcher|sweeper)([./].*)?|hydra\.mode")
# the values that keep Hydra from writing, importing and changing the process, by dotted key
FIXED: Mapping[str, Any] = {
    "callbacks": {},
    "hydra_logging.root": None,
    "job.chdir": False,
    "job.env_copy": [],
    "job.env_set": {},
    "job_logging.root": None,
    "output_subdir": None,
    "run.dir": ".",
    "searchpath": [],
    "sweep.dir": "${oc.env:ACCUMTRAIN_SWEEP_DIR,.}",
    "sweep.subdir": ".",
    "verbose": False,
}
NAMES_CODE = "_target_"  # the key by which Hydra finds what to import and call
MAKES_KEYS = re.compile(r"\$\{\s*oc\.(create|decode)\s*:")  # resolvers that turn text into a mapping
REMEDY = "only hydra/launcher, hydra/sweeper and their keys can be chosen, and files are written in run.dir"


def check_overrides(overrides: Iterable[str]) -> None:
    """Raises ConfigError for an override of a key of Hydra that is not open."""
    for override in overrides:
        for part in override.partition("=")[0].lstrip("+~").split("@"):
            if re.match(r"hydra\b", part) and not OPEN_KEYS.fullmatch(part):
                raise ConfigError(f"{override}: this part of Hydra is not open; leave it out: {REMEDY}")


class Loader(ConfigLoaderImpl):
    """Hydra's composer of configurations, which refuses one that would have Hydra do more than compose."""

    def load_configuration(self, *args: Any, **options: Any) -> DictConfig:
        """Raises ConfigError if Hydra's part is not as packaged, or if any part names code."""
        with composing():
            composed = super().load_configuration(*args, **options)
        _check_fixed(composed)
        _check_code(composed)
        return composed

    def _process_config_searchpath(
        self, config_name: str | None, parsed_overrides: list[Override], repo: CachingConfigRepository
    ) -> None:
        """A search path can name a Python package, which Hydra would import before anything is composed."""
        loaded = None if config_name is None else repo.load_config(config_path=config_name)
        if loaded is not None and OmegaConf.select(loaded.config, "hydra.searchpath"):
            raise ConfigError(f"hydra.searchpath in {config_name}: is not open; name one folder by --config-dir")


def _check_fixed(composed: DictConfig) -> None:
    hydra = OmegaConf.to_container(composed.hydra, resolve=False)
    for key, value in FIXED.items():
        found: Any = hydra
        for name in key.split("."):
            found = found.get(name) if isinstance(found, dict) else f"{found}"
        if found != value:
            raise ConfigError(f"hydra.{key}={show(found)}: must stay {show(value)}; leave it out: {REMEDY}")


def _check_code(composed: DictConfig) -> None:
    """A launcher or sweeper is instantiated with all that is in it, so it may name what an installed plugin names."""
    registered = _registered()
    for key, name, value in _entries(OmegaConf.to_container(composed, resolve=False)):
        in_plugin = bool(re.match(r"hydra\.(launcher|sweeper)\b", key))
        if name == NAMES_CODE and not (in_plugin and value in registered):
            raise ConfigError(
                f"{key}={show(value)}: a configuration can't name code to run; leave it out, and register code of your "
                "own in a program (docs/library.md)"
            )
        if in_plugin and isinstance(value, str) and MAKES_KEYS.search(value):
            raise ConfigError(f"{key}={value}: must not be made by oc.create or oc.decode; write the value itself")


def _entries(value: Any, where: str = "") -> Iterator[tuple[str, str, Any]]:
    """Dotted key, last name and value of everything in nested dictionaries and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        key = f"{where}.{name}" if where else str(name)
        yield key, str(name), item
        yield from _entries(item, key)


def _registered() -> set[Any]:
    """Everything that the installed plugins of Hydra name as code in the configurations they have stored."""
    nodes = _stored(ConfigStore.instance().repo.get("hydra", {}))
    return {value for node in nodes for _, name, value in _entries(node) if name == NAMES_CODE}


def _stored(repo: Mapping[str, Any]) -> Iterator[Any]:
    for entry in repo.values():
        if isinstance(entry, ConfigNode):
            yield OmegaConf.to_container(entry.node, resolve=False)
        else:
            yield from _stored(entry)
