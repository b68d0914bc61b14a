"""What TAB offers: Hydra's groups, choices and keys, and the values of keys that take one of a few words."""

from __future__ import annotations

from typing import Any

from hydra.core.object_type import ObjectType
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig

from accumtrain.config.declared_keys import all_keys
from accumtrain.errors import ConfigError
from accumtrain.shell.hydra_errors import USAGE_ERRORS
from accumtrain.shell.hydra_limits import Loader
from accumtrain.shell.overrides import for_hydra


class CompletionLoader(Loader):
    """What Hydra's completion asks. It offers nothing where the words before are no command, instead of failing."""

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        if results_filter == ObjectType.CONFIG and (words := _words(group_name)):
            return words
        try:
            return super().get_group_options(group_name, results_filter, config_name, for_hydra(overrides or []))
        except USAGE_ERRORS:
            return []

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **options: Any
    ) -> DictConfig:
        """Raises ConfigCompositionException, which Hydra's completion expects, for any mistake."""
        try:
            return super().load_configuration(config_name, for_hydra(overrides), *args, **options)
        except (ConfigError, *USAGE_ERRORS) as error:
            raise ConfigCompositionException(str(error)) from error


def _words(name: str) -> list[str]:
    """The words that the key `name` can be, whatever kind of its group is chosen."""
    return list(dict.fromkeys(word for key in all_keys() if key.name == name for word in key.choices))
