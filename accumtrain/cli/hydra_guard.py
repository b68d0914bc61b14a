"""Limits on Hydra, its errors in the user's words, and completion.

Hydra makes folders, writes logs, imports modules and calls functions that its configuration names. None of that is
left to a configuration: each one that is composed passes `Loader` first. A command may change the launcher and the
sweeper of a sweep, nothing else of Hydra's own.
"""

from __future__ import annotations

import difflib
import re
import shlex
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from accumtrain.cli.choices import all_choices
from accumtrain.cli.overrides import for_hydra, list_mappings, quote_text
from accumtrain.config.imagenet import IMAGENET, find_published
from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import list_all_keys
from accumtrain.config.read import explain_other_kind, list_known_keys
from accumtrain.errors import AccumtrainError, ConfigError, first_line
from accumtrain.fields import format_value, suggest_names, walk_values
from accumtrain.models.published.folder import CONFIG

OTHER_NAMES = {  # of keys, in the commands of other training programs
    **dict.fromkeys(("accumulation_steps", "accumulate_grad_batches", "grad_accum_steps"), "accum.steps"),
    "gradient_accumulation_steps": "accum.steps",
    **dict.fromkeys(("amp", "fp16", "bf16", "mixed_precision"), "precision"),
    **dict.fromkeys(("arch", "architecture", "backbone"), "model"),
    **dict.fromkeys(("batch", "bs", "train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("epoch", "max_epochs", "num_epochs", "num_train_epochs"), "train.epochs"),
    **dict.fromkeys(("img_size", "imgsz", "input_size", "resolution"), "data.image_size"),
    **dict.fromkeys(("learning_rate", "lr0"), "optim.lr"),
    **dict.fromkeys(("source", "dataset", "dataset_name"), "data"),
    "max_steps": "train.steps",
    **dict.fromkeys(("opt", "optimizer"), "optim"),
    **dict.fromkeys(("output", "output_dir", "project"), "run.dir"),
    "pretrained": "model.weights",
    **dict.fromkeys(("lr_scheduler", "sched", "scheduler"), "schedule"),
}
USAGE_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
EXTRAS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm"}  # extra of each launcher
OPEN_KEYS = re.compile(r"hydra[./](launcher|sweeper)([./].*)?|hydra\.mode")
# The values that keep Hydra from writing, importing and changing the process, by dotted key.
FIXED_VALUES: Mapping[str, Any] = {
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
CODE_KEY = "_target_"  # its value names the class or function that Hydra imports and calls
MAPPING_RESOLVER = re.compile(r"\$\{\s*oc\.(create|decode)\s*:")  # turns text into a mapping
REMEDY = "only hydra/launcher, hydra/sweeper and their keys can be chosen, and files are written in run.dir"

# ---- errors ----


def explain_error(error: Exception) -> ConfigError:
    """Return the ConfigError that explains `error`, one of USAGE_ERRORS, to the user."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, place = error.missing_cfg_file.partition("/")
        if group == "data" and Path(place).exists():
            return ConfigError(f"data={place}: no such choice; {_read_by(place)} reads it")
        group, _, choice = error.missing_cfg_file.rstrip("/").rpartition("/")
        options = error.options or all_choices([]).get(group)
        if group == "hydra/launcher" and choice in EXTRAS:
            return ConfigError(f"{group}={choice}: is not installed; pip install 'accumtrain[{EXTRAS[choice]}]'")
        if group == "model" and (said := _find_folder(error.missing_cfg_file) or _find_in_keras(choice, options or ())):
            return ConfigError(said)
        if options:
            is_number = choice.isdecimal() and f"{group}.steps" in list_known_keys()
            key = f"; a number is {group}.steps={choice}" if is_number else ""
            return ConfigError(f"{group}={choice}: no such choice; {suggest_names(choice, options)}{key}")
    if isinstance(error, OverrideParseException):
        return ConfigError(_explain_override(error.override))
    if unknown := re.match(r"Could not override '([^']+)'", text):
        given = re.search(rf"use \+{re.escape(unknown[1])}=(.*)", text)
        if unknown[1] == "data.path" and given:
            said = explain_other_kind("data", "path")
            return ConfigError(f"data.path={given[1]}: {said}; choose one, as in {_read_by(given[1])}")
        group, _, key = unknown[1].rpartition(".")
        if key == "name" and given and given[1] in all_choices([]).get(group, ()):
            return ConfigError(
                f"{unknown[1]}={given[1]}: it is chosen by its group; write {group}={given[1]} in its place"
            )
        return ConfigError(_explain_unknown_key(unknown[1]))
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


def _find_folder(missing: str) -> str | None:
    """Return the message for the folder of a published model in place of model=pretrained."""
    path = missing.partition("/")[2]
    if not Path(path, CONFIG).is_file():
        return None
    return (
        f"model={path}: no such choice; a published model is chosen by its folder: model=pretrained model.path={path}"
    )


def _find_in_keras(choice: str, options: Collection[str]) -> str | None:
    """Return the message for the name of a Keras model, or the beginning of one, in place of model=keras."""
    name = None if any(option.startswith(choice) for option in options) else find_published(choice)
    if name is None:
        return None
    return (
        f"model={choice}: no such choice; models of keras.applications are chosen by name: use model=keras "
        f"model.name={name} model.weights={IMAGENET}, or leave the last one out to start untrained"
    )


@contextmanager
def explain_composing() -> Iterator[None]:
    """Turn every error of this context, in which Hydra reads what the user has written, into a ConfigError."""
    try:
        yield
    except (AccumtrainError, *USAGE_ERRORS):
        raise
    except Exception as error:
        said = first_line(error)
        raise ConfigError(
            f"Hydra can't read this command: {said}; accumtrain --cfg job with one override at a time shows which"
        ) from error


def explain_plugin_error(error: Exception) -> ConfigError | None:
    """Return the ConfigError for an error that a launcher or sweeper of Hydra has raised; None for any other."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    if isinstance(error, (AccumtrainError, *USAGE_ERRORS)) or not any(
        name.startswith("hydra_plugins.") for name in modules
    ):
        return None
    return ConfigError(f"the launcher or sweeper ended the sweep: {first_line(error)}; the same command continues it")


def _explain_unknown_key(key: str) -> str:
    group, _, name = key.rpartition(".")
    if said := explain_other_kind(group, name):
        return f"{key}: {said}; leave it out"
    choices = all_choices([])
    if key in choices:
        return f"{key}: must be the name of a choice; {suggest_names('', choices[key])}"
    close = _find_close_keys(key)
    remedy = f"did you mean {' or '.join(close)}?" if close else "accumtrain --cfg job lists all keys"
    return f"{key}: no such key; {remedy}"


def explain_option(option: str) -> ConfigError:
    """Return the ConfigError for an option that there is not. It may be a setting, written as other programs do."""
    word, _, value = option.partition("=")
    key = word.lstrip("-").replace("-", "_")
    close = [key] if key in list_known_keys() else _find_close_keys(key)
    if not close:
        return ConfigError(f"{option}: no such option; accumtrain --help shows what there is")
    settings = " or ".join(f"{name}={value or '<value>'}" for name in close)
    return ConfigError(f"{option}: no such option; a setting has no dashes; write {settings} in its place")


def _find_close_keys(key: str) -> list[str]:
    """Return at most three keys or groups that the user may have meant, the likeliest first."""
    known = [*list_known_keys(), *all_choices([])]
    name = key.rpartition(".")[2]
    if name in OTHER_NAMES:
        return [OTHER_NAMES[name]]
    same_end = [other for other in known if other.rpartition(".")[2] == name]
    return list(dict.fromkeys([*same_end, *difflib.get_close_matches(key, known)]))[:3]


def _read_by(place: str) -> str:
    """Return the choice of data that reads a folder or file of the user's, by its ending."""
    tables = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
    kinds = {".npz": "npz", **dict.fromkeys(tables, "table"), ".txt": "texts", ".tfrecord": "tfrecord"}
    return f"data={kinds.get(Path(place).suffix.lower(), 'folder')} data.path={Path(place)}"


def _suggest_setting(word: str) -> str:
    """Return the remedy for a word without =, which is, or nearly is, a key or a choice. Else it is empty."""
    if any(word.startswith(f"{key}.") for key in list_mappings()):
        return f"; did you mean {word}=<value>?"
    choices = all_choices([])
    whole = {choice: f"{group}={choice}" for group, names in choices.items() for choice in names}
    whole |= {name: f"{name}=<value>" for name in [*list_known_keys(), *choices]}
    whole |= {name: f"job={name}" for name in JOBS.names}
    close = [whole[name] for name in ([word] if word in whole else difflib.get_close_matches(word, whole))]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _explain_override(override: str) -> str:
    if override.startswith("-"):
        return f"{override}: no such option; accumtrain --help shows what there is"
    key, equals, value = override.partition("=")
    if not equals:
        return f"{override}: must be key=value{_suggest_setting(override)}"
    if not re.fullmatch(r"[\w./@+~]+", key):
        return _explain_unknown_key(key)
    if re.fullmatch(r"\{.+:.*\}", value):
        return (
            f"{override}: the value can't be read; names in a mapping have no quotes, and of letters those of ASCII: "
            "give other names in a Python program (docs/library.md)"
        )
    if re.fullmatch(r"\[[^\[\]{}'\"`$!\\]+\]", value):  # a list of texts
        quoted = ",".join(quote_text(part.strip()) for part in value[1:-1].split(","))
        return f'{override}: the value can\'t be read; quote each text of the list: {key}="[{quoted}]"'
    as_text = quote_text(value).replace("${", "\\${")
    simple = as_text == f"'{value}'" and not set(value) & set('"`$!')
    argument = f'{key}="{as_text}"' if simple else shlex.quote(f"{key}={as_text}")
    return f"{override}: the value can't be read; quote it twice: {argument}"


# ---- limits ----


def check_overrides(overrides: Iterable[str]) -> None:
    """Raise ConfigError for an override of a key of Hydra that is not open."""
    for override in overrides:
        for part in override.partition("=")[0].lstrip("+~").split("@"):
            if re.match(r"hydra\b", part) and not OPEN_KEYS.fullmatch(part):
                raise ConfigError(f"{override}: this part of Hydra can't be set; leave it out: {REMEDY}")


class Loader(ConfigLoaderImpl):
    """Hydra's composer of configurations, which refuses one that would have Hydra do more than compose."""

    def load_configuration(self, *args: Any, **options: Any) -> DictConfig:
        """Raise ConfigError if Hydra's part is not as packaged, or if any part names code."""
        with explain_composing():
            composed = super().load_configuration(*args, **options)
        _check_fixed(composed)
        _check_code(composed)
        return composed

    def _process_config_searchpath(
        self, config_name: str | None, parsed_overrides: list[Override], repo: CachingConfigRepository
    ) -> None:
        """Refuse a search path: it can name a Python package, which Hydra would import before it composes."""
        loaded = None if config_name is None else repo.load_config(config_path=config_name)
        if loaded is not None and OmegaConf.select(loaded.config, "hydra.searchpath"):
            raise ConfigError(f"hydra.searchpath in {config_name}: can't be set; name one folder with --config-dir")


def _check_fixed(composed: DictConfig) -> None:
    hydra = OmegaConf.to_container(composed.hydra, resolve=False)
    for key, value in FIXED_VALUES.items():
        found: Any = hydra
        for name in key.split("."):
            found = found.get(name) if isinstance(found, dict) else f"{found}"
        if found != value:
            raise ConfigError(
                f"hydra.{key}={format_value(found)}: must stay {format_value(value)}; leave it out: {REMEDY}"
            )


def _check_code(composed: DictConfig) -> None:
    """Raise ConfigError for code that is named. A launcher or sweeper may name what its installed plugin names."""
    stored = _list_stored(ConfigStore.instance().repo.get("hydra", {}))
    registered = {value for node in stored for key, value in walk_values(node) if key.rpartition(".")[2] == CODE_KEY}
    for key, value in walk_values(OmegaConf.to_container(composed, resolve=False)):
        in_plugin = bool(re.match(r"hydra\.(launcher|sweeper)\b", key))
        if key.rpartition(".")[2] == CODE_KEY and not (in_plugin and value in registered):
            raise ConfigError(
                f"{key}={format_value(value)}: a configuration can't name code to run; leave it out, and register code "
                "of your own in a program (docs/library.md)"
            )
        if in_plugin and isinstance(value, str) and MAPPING_RESOLVER.search(value):
            raise ConfigError(f"{key}={value}: must not be made by oc.create or oc.decode; write the value itself")


def _list_stored(repo: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the configurations that the installed plugins of Hydra have stored."""
    for entry in repo.values():
        if isinstance(entry, ConfigNode):
            yield OmegaConf.to_container(entry.node, resolve=False)
        else:
            yield from _list_stored(entry)


# ---- completion: groups, choices and keys, and the values of keys that take one of a few words ----


class CompletionLoader(Loader):
    """The loader of Hydra's completion. After words that are no command it offers nothing, instead of failing."""

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        words = dict.fromkeys(word for key in list_all_keys() if key.name == group_name for word in key.choices)
        if words and results_filter == ObjectType.CONFIG:
            return list(words)
        try:
            return super().get_group_options(group_name, results_filter, config_name, for_hydra(overrides or []))
        except USAGE_ERRORS:
            return []

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **options: Any
    ) -> DictConfig:
        """Raise ConfigCompositionException, which Hydra's completion expects, for any mistake."""
        try:
            return super().load_configuration(config_name, for_hydra(overrides), *args, **options)
        except (ConfigError, *USAGE_ERRORS) as error:
            raise ConfigCompositionException(str(error)) from error
