"""Turns the errors of Hydra and OmegaConf into one message with a remedy."""

from __future__ import annotations

import difflib
import re
import shlex
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from accumtrain.config.convert import known_keys, of_another_kind
from accumtrain.errors import AccumtrainError, ConfigError, first_line
from accumtrain.kinds.jobs import JOBS
from accumtrain.kinds.values import suggest
from accumtrain.shell.choices import all_choices
from accumtrain.shell.overrides import mappings, quoted

USAGE_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
EXTRAS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm"}  # extra of each launcher


def explain(error: Exception) -> ConfigError:
    """The ConfigError that explains `error`, one of USAGE_ERRORS, to the user."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, place = error.missing_cfg_file.partition("/")
        if group == "data" and Path(place).exists():
            return ConfigError(f"data={place}: no such choice; {_read_by(place)} reads it")
        group, _, choice = error.missing_cfg_file.rstrip("/").rpartition("/")
        options = error.options or all_choices([]).get(group)
        if group == "hydra/launcher" and choice in EXTRAS:
            return ConfigError(f"{group}={choice}: is not installed; pip install 'accumtrain[{EXTRAS[choice]}]'")
        key = f"; a number is {group}.steps={choice}" if choice.isdecimal() and f"{group}.steps" in known_keys() else ""
        if options:
            return ConfigError(f"{group}={choice}: no such choice; {suggest(choice, options)}{key}")
    if isinstance(error, OverrideParseException):
        return ConfigError(_unreadable(error.override))
    if unknown := re.match(r"Could not override '([^']+)'", text):
        given = re.search(rf"use \+{re.escape(unknown[1])}=(.*)", text)
        if unknown[1] == "data.path" and given:
            said = of_another_kind("data", "path")
            return ConfigError(f"data.path={given[1]}: {said}; choose one, as in {_read_by(given[1])}")
        return ConfigError(_unknown_key(unknown[1]))
    if several := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'", text):
        return ConfigError(
            f"{several[1]}: several values make a sweep; add -m to train with each, write a list as key=[a,b], or a "
            "text with a comma in two pairs of quotes, key=\"'a,b'\""
        )
    if chosen := re.match(r"Multiple values for (\S+)\. To override a value use 'override \S+: (\S+)'", text):
        return ConfigError(f"+{chosen[1]}={chosen[2]}: there is a choice already; write {chosen[1]}={chosen[2]}")
    if "INTERVAL_SWEEP" in text:
        return ConfigError(
            "interval(...) names no values, and a sweep tries each; write them with commas, or range(...)"
        )
    cause = f"{text}: {error.__cause__}" if isinstance(error.__cause__, OmegaConfBaseException) else text
    return ConfigError(" ".join(re.sub(r"\s*(full_key|object_type|reference_type).*", "", cause).split()))


@contextmanager
def composing() -> Iterator[None]:
    """Within this context Hydra reads what the user has written, so whatever fails there is a ConfigError."""
    try:
        yield
    except (AccumtrainError, *USAGE_ERRORS):
        raise
    except Exception as error:
        said = first_line(error)
        raise ConfigError(
            f"Hydra can't read this command: {said}; accumtrain --cfg job with one override at a time shows which"
        ) from error


def explain_plugin(error: Exception) -> ConfigError | None:
    """The ConfigError for an error that a launcher or sweeper of Hydra has raised; None for any other error."""
    if isinstance(error, (AccumtrainError, *USAGE_ERRORS)) or not _from_plugin(error):
        return None
    said = first_line(error)
    return ConfigError(f"the launcher or sweeper ended the sweep: {said}; the same command continues it")


def _from_plugin(error: Exception) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").startswith("hydra_plugins.") for frame in frames)


def _unknown_key(key: str) -> str:
    group, _, name = key.rpartition(".")
    if said := of_another_kind(group, name):
        return f"{key}: {said}; leave it out"
    choices = all_choices([])
    if key in choices:
        return f"{key}: must be the name of a choice; {suggest('', choices[key])}"
    known = [*known_keys(), *choices]
    same_end = [each for each in known if each.rpartition(".")[2] == name]
    close = list(dict.fromkeys([*same_end, *difflib.get_close_matches(key, known)]))[:3]
    remedy = f"did you mean {' or '.join(close)}?" if close else "accumtrain --cfg job lists all keys"
    return f"{key}: no such key; {remedy}"


def _read_by(place: str) -> str:
    """The choice of data that reads a folder or file of the user's, by its ending."""
    kinds = {".npz": "npz", ".csv": "table", ".tsv": "table", ".tfrecord": "tfrecord"}
    return f"data={kinds.get(Path(place).suffix.lower(), 'folder')} data.path={Path(place)}"


def _meant(word: str) -> str:
    """The remedy for a word without =: what it is the value of, or nearly so; empty if there is nothing near."""
    if any(word.startswith(f"{key}.") for key in mappings()):
        return f"; did you mean {word}=<value>?"
    choices = all_choices([])
    whole = {choice: f"{group}={choice}" for group, names in choices.items() for choice in names}
    whole |= {name: f"{name}=<value>" for name in [*known_keys(), *choices]} | {
        name: f"job={name}" for name in JOBS.names
    }
    close = [whole[name] for name in difflib.get_close_matches(word, whole)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _unreadable(override: str) -> str:
    if override.startswith("-"):
        return f"{override}: no such option; accumtrain --help shows what there is"
    key, equals, value = override.partition("=")
    if not equals:
        return f"{override}: must be key=value{_meant(override)}"
    if not re.fullmatch(r"[\w./@+~]+", key):
        return _unknown_key(key)
    as_text = quoted(value).replace("${", "\\${")
    simple = as_text == f"'{value}'" and not set(value) & set('"`$!')
    argument = f'{key}="{as_text}"' if simple else shlex.quote(f"{key}={as_text}")
    return f"{override}: the value can't be read; quote it twice: {argument}"
