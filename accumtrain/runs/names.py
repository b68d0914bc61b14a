"""The name and the folder of a run, and the values that decide what it learns."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from accumtrain.config.read import list_known_keys, to_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.roles import keys_with, list_roles
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.fields import Role, format_value, shorten, value_at

LONGEST = 48  # characters of a derived name, without its hash

LENGTH = "data.length"
CHECKPOINTS = "checkpoints"  # of a run, within its folder
BEST = "best"  # the checkpoints of the best state, within their folder
QUARANTINE = "quarantine"  # of damaged checkpoints, within their folder

LOCK = ".lock"  # the file that a run's folder has while it is trained, and after it
MARK = ".accumtrain"  # an empty file in the folders that jobs have made: nothing in them is data

# Keys that runs of older programs lack, with the values by which they learned; null means these, too.
ADDED: Mapping[str, Any] = {
    "batch_ramp": {},
    "optim.half_life": None,
    "optim.half_life_first": None,
    "ema.half_life": None,
}

CLASSES = "data.classes"  # of a fingerprint: their names, or their number

# ---- name ----


def run_name(config: Config, overrides: Sequence[str], swept: Collection[str] = ()) -> str:
    """Return run.name, or a name derived from the command: the same command gives the same name.

    Args:
        overrides: the command's `key=value` arguments, those of this job in a sweep.
        swept: the keys that the sweep varies. A name that can't hold all words has theirs first.
    """
    if config.run.name is not None:
        return config.run.name
    values = dict(override.lstrip("+~").partition("=")[::2] for override in overrides)
    base, in_base = f"{config.model.label}-{config.data.label}", {"model", "data", "model.name", "data.name"}
    if "experiment" in values:
        base, in_base = values["experiment"], {"experiment"}
    apart = {*in_base, *keys_with(Role.UNNAMED, to_mapping(config))}
    shown = {key: value for key, value in sorted(values.items()) if key not in apart and not key.startswith("hydra")}
    path = PurePath(shown.get("data.path", ""))
    if len(path.parts) == 1 and base.endswith((f"-{shown['data.path']}", f"-{path.stem}")):
        del shown["data.path"]  # the base has it already, as that of a folder beside the runs
    words = {key: _name_value(key, value) for key, value in shown.items()}
    exact, name = "-".join([base, *words.values()]), _join_words(base, words.values())
    if name == exact:
        return name
    swept_first = sorted(words, key=lambda key: key not in swept)
    return f"{_join_words(base, map(words.__getitem__, swept_first))}-{_digest(exact)}"


def _name_value(key: str, value: str) -> str:
    """Return the word of a key and its value in a name: seed3, batch_size64, augment_crop_flip, beta1_0.9."""
    word = _shorten_keys().get(key, key)
    return f"{word}{value}" if value[:1].isdigit() and not word[-1:].isdigit() else f"{word}_{value}"


def _join_words(base: str, words: Iterable[str]) -> str:
    """Return the base and as many of the words as fit."""
    name = replace_odd(base)[:LONGEST]
    for word in map(replace_odd, words):
        if len(name) + 1 + len(word) > LONGEST:
            break
        name += f"-{word}"
    return name


def shorten_name(name: str, longest: int) -> str:
    """Return a name of at most `longest` characters as it is. Of a longer one return its first words, and a hash."""
    if len(name) <= longest:
        return name
    head, _, _ = name[: longest + 1].rpartition("-")
    return f"{head or name[:longest]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@cache
def _shorten_keys() -> dict[str, str]:
    """Return the last part of each dotted key that no other key ends with."""
    keys = list_known_keys()
    last = Counter([*(field.name for field in fields(Config)), *(key.rpartition(".")[2] for key in keys)])
    return {key: name for key in keys if last[name := key.rpartition(".")[2]] == 1}


def replace_odd(text: str) -> str:
    """Return text with _ in the place of characters that do not belong in a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")


# ---- folder of a run ----


def folder_of(config: Config) -> Path:
    return Path(config.run.dir) / run_name(config, [])


def has_checkpoints(path: Path) -> bool:
    """Return whether the folder holds a run that can be continued or used, damaged or not."""
    return any(path.glob(f"{CHECKPOINTS}/**/step-*"))


def is_of_runs(folder: Path) -> bool:
    """Return whether a folder is that of a run or of a job, or holds such folders."""
    return (folder / MARK).exists() or (folder / LOCK).exists()


def make_folder(path: Path) -> None:
    """Make the folder and those above it. Raise ConfigError if that fails."""
    with folder_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def make_results_folder(path: Path) -> None:
    """Make the folder for results of a job, if it is not there. Nothing in a new one is data. Raise ConfigError."""
    if not path.is_dir():
        make_folder(path)
        with folder_errors(path):
            (path / MARK).touch()


@contextmanager
def folder_errors(path: Path, but: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Turn an OSError of this context into a ConfigError that names the folder of the run.

    Args:
        but: a kind that is raised as it is.
    """
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise ConfigError(
            f"the run's folder {shorten(str(path))} can't be used: {error.strerror}; choose another run.dir or run.name"
        ) from error


# ---- identity: what a continued run must have in common with the run that it continues ----


def learned_values(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that decide what is learned, by dotted key.

    Raises:
        AttributeError, KeyError, TypeError: the mapping is not the content of a config.yaml.
    """
    mapping = to_mapping(config) if isinstance(config, Config) else config
    learned = {}
    for key, role in list_roles(mapping).items():
        if Role.LEARNED not in role:
            continue
        group, _, name = key.partition(".")
        if Role.BEST in role:
            learned[key] = value_at(mapping, key)
        elif not name:
            value = mapping.get(group)
            learned[key] = ADDED[key] if value is None else value
        elif name in mapping[group]:
            learned[key] = mapping[group][name]
        elif group not in REGISTRIES:
            learned[key] = ADDED[key]
    if learned["accum.reduction"] != "sum":
        del learned["accum.steps"]
    return learned


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return `key=old there and new here` for each key whose value differs; empty if none does.

    Keys that only one side has are left out: they belong to another kind, whose name differs, too.
    """
    return ", ".join(
        f"{key}={format_value(old)} there and {format_value(new)} here" for key, old, new in _list_changes(before, now)
    )


def fits_state(before: Mapping[str, Any], config: Config) -> bool:
    """Return whether the state of a run can go on with other learned values, so that run.resume=force helps."""
    rules = keys_with(Role.RULE, to_mapping(config))
    return all(before.get(key, new) == new or key in rules for key, new in learned_values(config).items())


def has_same_class_count(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two fingerprints of data have as many classes, which the state of a run needs to go on."""
    classes = [fingerprint.get(CLASSES) for fingerprint in (before, now)]
    first, second = (len(names) if isinstance(names, list) else names for names in classes)
    return bool(first == second)


def _list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted key, old and new value of each value that both sides have and that differs.

    Mappings with the same keys are compared key by key.
    """
    for key, new in now.items():
        old = before.get(key, new)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
            yield from ((f"{key}.{name}", *values) for name, *values in _list_changes(old, new))
        elif old != new:
            yield key, old, new
