"""Composes checked configurations from the command in sys.argv, by Hydra."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from accumtrain.config.conf_dir import CONF_DIR
from accumtrain.config.convert import from_mapping
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.runs.names import run_name
from accumtrain.shell.hydra_errors import explain_plugin


def call_hydra(task: Callable[[DictConfig], Any]) -> None:
    """Parses sys.argv and calls `task` with each composed configuration, or answers --cfg and the like."""
    try:
        hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")(task)()
    except ValueError as error:  # two options that exclude each other
        raise explain_plugin(error) or ConfigError(f"{error}; accumtrain --help shows examples") from error


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """What Hydra composed, as nested dictionaries."""
    return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))


def read_config(values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The checked configuration. Without run.name it gets a name derived from its overrides."""
    config = from_mapping(values)
    return replace(config, run=replace(config.run, name=run_name(config, overrides)))
