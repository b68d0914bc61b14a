"""The values of a job that goes on with a run, and the check of values in files that the command contradicts.

A job takes the values of the run that it goes on with, but for those that its command gives. A file, such as an
experiment or a recipe, gives keys for the choices that it expects. If the command chooses otherwise, its user may not
know these keys, and is told of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from accumtrain.cli.overrides import find_given_value, parse_key, sets_any_key
from accumtrain.config.imagenet import IMAGENET, PUBLISHED
from accumtrain.config.interpolation import resolve_interpolations
from accumtrain.config.jobs import JOBS
from accumtrain.config.read import MISSING, expand_home, explain_other_kind, from_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.roles import list_roles
from accumtrain.config.schema import Config
from accumtrain.console import warn
from accumtrain.data.sources.config import SOURCES
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import LOCAL_PATH, Role, format_value, value_at
from accumtrain.models.config import ANY
from accumtrain.models.keras.config import KerasHubConfig
from accumtrain.models.keras.hub_folder import PresetFolder, is_folder
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.folder import Folder
from accumtrain.runs.contents import check_values, read_config
from accumtrain.runs.folder import check_has_run
from accumtrain.runs.names import LENGTH, folder_errors, has_checkpoints, learned_values, run_name

DEPENDENT_KEYS = {  # keys that a given key makes obsolete
    "model.memory": ("model.kept_convs", "model.kept_share", "model.kept_blocks"),
    "train.epochs": ("train.steps",),
}
FIRST_WEIGHTS = "model.weights"  # a run notes a digest of their content, a command gives their path

# ---- values of the run ----


def merge_run_values(
    values: Mapping[str, Any], overrides: Sequence[str], swept: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return the values of the run that the job goes on with, changed by `overrides`. Without a run return `values`.

    Raises:
        ConfigError: an override changes what was learned and the job uses it, or the run has a kind that this program
            does not.
        CheckpointError: the job is no training, and the run's config.yaml can't be read, or there is no run and the
            values have a mistake.
    """
    job = JOBS.entries.get(str(values.get("job")))
    run = resolve_interpolations(values).get("run")
    if job is None or job.scope == "runs" or not isinstance(run, Mapping):
        return values  # from_mapping names their mistakes
    name = run.get("name")
    if name is None and job.scope != "trained":  # the whole command is the name of the run
        return values
    name = name or run_name(from_mapping(values), overrides, swept)
    file = Path(expand_home(str(run.get("dir"))), str(name), "config.yaml")
    if not _exists(file) or not has_checkpoints(file.parent):
        if job.scope == "trained":
            _check_without_run(values, file.parent)
        return values
    try:
        before = read_config(file)
        check_values(before, file.parent)
    except CheckpointError as error:
        if job.scope != "train":
            raise
        warn(f"{error}; the command's own values are used")  # Run compares them with the checkpoints
        return values
    given = _given(values, overrides)
    fixed = _fixed(before)
    try:
        now = _fixed(values)
    except (AttributeError, KeyError, TypeError) as error:
        from_mapping(values)  # names a value of the wrong type
        removing = " ".join(override for override in overrides if override.startswith("~")) or "the command"
        raise ConfigError(f"{removing}: removes a key that decides what is learned; leave it out") from error
    roles = list_roles(before) | list_roles(values)
    of_run = {key for key, role in roles.items() if Role.SEEN in role or Role.HELD_OUT in role}
    if given.get("data") == "data":  # a choice, which says where the data is
        same = find_given_value(overrides, "data", "") == before["data"]["kind"]
        given = {key: by for key, by in given.items() if by != "data" or not (same or key in of_run)}
    if "task.kind" in given and value_at(before, "task.kind") != value_at(values, "task.kind"):
        given = {"loss": "task", "loss.kind": "task", **given}  # a loss belongs to its task
    if job.measures_other_data:
        fixed = {key: value for key, value in fixed.items() if not key.startswith("data.") or key in of_run}
    if job.scope == "trained":
        if from_mapping(before).model.lengths == ANY and value_at(values, LENGTH) is not None:
            fixed.pop(LENGTH, None)
        _check_given(fixed, now, given, file.parent)
    outdated = {dependent for key in given for dependent in DEPENDENT_KEYS.get(key, ())}
    merged = dict(before)
    for group, new in values.items():
        old = before.get(group)
        if group in roles or not (isinstance(new, Mapping) and isinstance(old, Mapping)):
            is_own = group in given or group not in before or Role.COMMAND in roles.get(group, Role.NONE)
            merged[group] = new if is_own else old
        elif new.get("kind") != old.get("kind") and f"{group}.kind" in given:
            seen = {key: item for key, item in old.items() if key in new and Role.SEEN in roles[f"{group}.{key}"]}
            merged[group] = {**new, **seen}
        else:
            own = {key for key in {*old, *new} if Role.COMMAND in roles[f"{group}.{key}"]}
            kept = {key: item for key, item in old.items() if key not in own and f"{group}.{key}" not in outdated}
            chosen = {key: item for key, item in new.items() if key in own or f"{group}.{key}" in given}
            merged[group] = {**kept, **chosen}
    return merged


def _check_without_run(values: Mapping[str, Any], folder: Path) -> None:
    """Raise CheckpointError for values with a mistake, which those of a run in the folder might not have."""
    try:
        from_mapping(values)
    except ConfigError:
        check_has_run(folder)
        raise


def add_data_choice(overrides: list[str]) -> list[str]:
    """Return the overrides, with the choice of data of the run that a job goes on with if keys of data need it.

    Hydra knows a key such as data.path only if a kind that has it is chosen.

    Raises:
        CheckpointError: there is no run, or its config.yaml can't be read.
    """
    job = JOBS.entries.get(find_given_value(overrides, "job", Config.job))
    keys = {parse_key(override) for override in overrides}
    of_data = any(key.startswith("data.") for key in keys) and "data" not in keys
    name = find_given_value(overrides, "run.name", "")
    file = Path(expand_home(find_given_value(overrides, "run.dir", "runs")), name, "config.yaml")
    if job is None or job.scope == "runs" or not (of_data and name):
        return overrides
    if job.scope == "trained":
        check_has_run(file.parent)
    if not _exists(file):
        return overrides
    kind = read_config(file)["data"].get("kind")
    return [f"data={kind}", *overrides] if kind in SOURCES.names else overrides


def _fixed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a command which goes on with the run can't change."""
    return {**learned_values(values), FIRST_WEIGHTS: values["model"].get("weights")}


def _given(values: Mapping[str, Any], overrides: Collection[str]) -> dict[str, str]:
    """Return the keys that `overrides` give, dotted and of the top, each with the override that gives it.

    That override sets the key itself, its group, or a choice that may set any key, such as experiment and recipe.
    """
    written = {parse_key(override) for override in overrides}
    cross_group = sorted(parse_key(override) for override in overrides if sets_any_key(override))
    given = {}
    for group, value in values.items():
        names = [f"{group}.{key}" for key in value] if isinstance(value, Mapping) else []
        for key in (group, *names):
            givers = [giver for giver in (*cross_group, key, group) if giver in written]
            givers += [giver for giver in written if key in names and giver.startswith(f"{key}.")]
            if givers:
                given[key] = givers[0]
    return given


def _check_given(before: Mapping[str, Any], now: Mapping[str, Any], given: Mapping[str, str], folder: Path) -> None:
    for key in sorted(before.keys() & now.keys() & given.keys()):
        if before[key] != now[key]:
            raise ConfigError(
                f"{key}={format_value(now[key])}: the run in {folder} was trained with "
                f"{key}={format_value(before[key])}; leave {given[key]} out to use the values of the run"
            )


# ---- values of weights ----


def set_expected_data(values: Mapping[str, Any], overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return the values with the keys of data that published weights expect, and the architecture of their folder.

    Keys that the command itself gives stay, and so does everything with other weights.

    Raises:
        ConfigError: the folder of published weights can't be read, or does not tell what it expects.
    """
    model, data = values.get("model"), values.get("data")
    if not isinstance(model, Mapping) or not isinstance(data, Mapping):
        return values  # from_mapping names the mistake
    written = {parse_key(override) for override in overrides}
    expected: Mapping[str, Any] = {}
    if model.get("weights") == IMAGENET and (pixels := PUBLISHED.get(str(model.get("name")))):
        expected = {"mean": list(pixels.mean), "std": list(pixels.std)}
    folder = _find_published(model)
    if folder is not None and not model.get("architecture"):
        model = {**model, "architecture": dict(folder.config)}
        expected = folder.list_data_keys({key.removeprefix("data.") for key in written})
    chosen = {key: value for key, value in expected.items() if key in data and f"data.{key}" not in written}
    return {**values, "model": model, "data": {**data, **chosen}}


def _find_published(model: Mapping[str, Any]) -> Folder | None:
    """Return the folder of a published model; None for other models, and for a value that `check_config` refuses."""
    given = {PretrainedConfig.kind: "path", KerasHubConfig.kind: "preset"}.get(str(model.get("kind")))
    value = None if given is None else model.get(given)
    if not isinstance(value, str) or value in ("", MISSING):
        return None
    path = Path(expand_home(value))
    LOCAL_PATH.check(f"model.{given}", str(path))
    if given == "path":
        return Folder(path)
    return PresetFolder(path) if is_folder(path) else None


# ---- values of a file ----


def check_files(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse composed values, of the files of a command, that its overrides contradict.

    Raises:
        ConfigError: a file gives train.steps, which takes precedence over the command's train.epochs; or it gives a key
            that the chosen kind does not have.
    """
    written = {parse_key(override) for override in overrides}
    files = [override for override in overrides if sets_any_key(override)]
    source = " or ".join(files) or "a file of the command"
    epochs, steps = value_at(values, "train.epochs"), value_at(values, "train.steps")
    if "train.epochs" in written and "train.steps" not in written and epochs is not None and steps is not None:
        raise ConfigError(
            f"train.epochs={format_value(epochs)}: {source} gives train.steps={format_value(steps)}, which takes "
            "precedence; add train.steps=null"
        )
    given = {key[: dot.start()] for key in written for dot in re.finditer(r"\.|$", key)}  # with what is above a key
    for group in REGISTRIES:
        strays = [key for key in _list_strays(group, values.get(group)) if key not in given]
        if strays:
            gives = " and ".join(["it", *strays[1:]])
            raise ConfigError(
                f"{strays[0]}: {explain_other_kind(group, strays[0].partition('.')[2])}; {source} gives {gives}: "
                f"add {' '.join(f'~{key}' for key in strays)}"
            )


def _list_strays(group: str, given: Any) -> list[str]:
    """Return the dotted keys of a group that only other kinds than the chosen one have."""
    kind = value_at(given, "kind")
    if kind not in REGISTRIES[group].names:
        return []
    known = {field.name for field in fields(REGISTRIES[group][kind].config)}
    return [f"{group}.{key}" for key in given if key not in known and explain_other_kind(group, key)]


def _exists(file: Path) -> bool:
    """Return whether the file of a run is there.

    Raises:
        ConfigError: No file can have such a name.
        PermissionError: Its folder can't be read.
    """
    with folder_errors(file.parent, but=PermissionError):
        return file.exists()
