"""Every entry of every registry is whole: its code is there, its keys read and write, its files and words exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import accumtrain
from accumtrain.cli.choices import all_choices
from accumtrain.cli.help import help_text
from accumtrain.config.check import check_config
from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import CONF_DIR
from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.data.config import NpzConfig, TextsConfig
from accumtrain.devices.config import DEVICES
from accumtrain.errors import ConfigError
from accumtrain.fields import CLASSES, TOKENS, format_value
from accumtrain.registry import load
from accumtrain.tasks.config import TASKS
from tests.contract.examples import EXAMPLES, example_of

ENTRIES = [(group, name) for group, table in REGISTRIES.items() for name in table.names]
of_every_entry = pytest.mark.parametrize(("group", "name"), ENTRIES, ids=["=".join(entry) for entry in ENTRIES])
of_every_job = pytest.mark.parametrize("name", JOBS.names)
# Choices whose file has another name than its kind, and the class whose defaults it writes out.
NAMESAKES = {
    **{"lenet": ["lenet5"], "resnet": ["resnet20"], "revnet": ["revnet38"]},
    **{"unet": ["unet_small"], "revunet": ["revunet_small"]},
    **{kind: [f"{kind}_tiny"] for kind in ("vit", "revvit", "encoder", "revencoder", "decoder", "revdecoder")},
}
ROOT = Path(accumtrain.__file__).parents[1]
PAGES = "\n".join(page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


def required(group: str, name: str) -> dict[str, Any]:
    """The keys of an entry that have no default, with the values that its example gives them."""
    example = example_of(group, name)
    nothing = dataclasses.MISSING
    keys = [each.name for each in dataclasses.fields(example) if each.default is each.default_factory is nothing]
    return {key: getattr(example, key) for key in keys}


def beside(group: str, name: str) -> dict[str, Any]:
    """The task, and data with its targets, that an entry goes with, where they are not the default ones."""
    forms = getattr(REGISTRIES[group][name], "targets", CLASSES)
    form = forms[0] if group == "loss" else forms
    if group not in ("task", "loss") or form == CLASSES:
        return {}
    task = next(entry.config() for entry in TASKS if entry.targets == form)
    return {"task": task, "data": TextsConfig(path="texts") if form == TOKENS else NpzConfig(path="mine.npz")}


def choices_of(group: str, name: str) -> list[str]:
    """The names by which the command line knows the entry with the defaults of its dataclass."""
    return NAMESAKES.get(name, [name]) if group == "model" else [name]


# --- the tables ---------------------------------------------------------------------------------------------------


@of_every_entry
def test_the_row_is_called_as_its_keys_say_and_its_code_is_there(group, name):
    entry = REGISTRIES[group][name]
    assert entry.name == name == entry.config.kind == example_of(group, name).kind
    assert type(example_of(group, name)) is entry.config
    assert callable(load(entry.build))


@pytest.mark.parametrize("name", DEVICES.names)
def test_the_code_of_a_device_is_there(name):
    entry = DEVICES[name]
    assert all(callable(load(each)) for each in (entry.plan, entry.before_tensorflow) if each is not None)


def test_examples_are_of_rows():
    tables = {group: set(table.names) for group, table in {**REGISTRIES, "job": JOBS}.items()}
    tried = {group: set(entries) for group, entries in EXAMPLES.items()}
    missing = [f"{group}={name}" for group, names in tables.items() for name in sorted(names - tried[group])]
    assert not missing, "EXAMPLES of tests/contract/examples.py needs them"
    assert tried == tables


@pytest.mark.parametrize("table", [*REGISTRIES.values(), JOBS], ids=[*REGISTRIES, "job"])
def test_an_unknown_row_is_a_mistake_that_names_the_key(table):
    with pytest.raises(ConfigError, match=f"{table.key}=nothing: no such "):
        table["nothing"]


# --- keys ---------------------------------------------------------------------------------------------------------


@of_every_entry
def test_only_what_has_no_default_must_be_given(group, name):
    keys, config = required(group, name), REGISTRIES[group][name].config
    check_config(Config(**{**beside(group, name), group: config(**keys)}))
    for key in keys:
        given = {"kind": name, **keys}
        del given[key]
        with pytest.raises(ConfigError, match=rf"{group}\.{key} has no value; add {group}\.{key}=[^<]"):
            from_mapping({group: given})
        with pytest.raises(TypeError, match=key):
            config(**{other: value for other, value in keys.items() if other != key})


@of_every_entry
def test_it_survives_a_round_trip(group, name):
    config = Config(**{**beside(group, name), group: example_of(group, name)})
    check_config(config)
    assert from_mapping(yaml.safe_load(yaml.safe_dump(to_mapping(config)))) == config


@of_every_entry
def test_an_unknown_key_names_it(group, name):
    with pytest.raises(ConfigError, match=rf"{group}\.colour: no such key in {group} \(kind {name}\)"):
        from_mapping({group: {"kind": name, **required(group, name), "colour": 1}})


# --- conf/ --------------------------------------------------------------------------------------------------------


@of_every_entry
def test_it_is_a_choice_with_the_defaults_of_its_keys(group, name, compose):
    """By its YAML file, or without one by the entry alone."""
    for choice in choices_of(group, name):
        overrides = [f"{group}.{key}={format_value(value)}" for key, value in required(group, name).items()]
        for other, config in beside(group, name).items():
            path = [f"data.path={config.path}"] if other == "data" else []
            overrides += [f"{other}={config.kind}", *path] if other != group else path
        composed = getattr(compose(f"{group}={choice}", *overrides), group)
        assert composed == REGISTRIES[group][name].config(**required(group, name))


@of_every_entry
def test_its_file_says_what_it_is(group, name):
    for file in (CONF_DIR / group / f"{choice}.yaml" for choice in choices_of(group, name)):
        assert not file.exists() or re.match(r"(# @package _global_\n)?# [A-Z].*[.:]", file.read_text())


def test_every_file_in_conf_is_of_a_row(compose):
    for group, table in REGISTRIES.items():
        for file in (CONF_DIR / group).glob("*.yaml"):
            kind = yaml.safe_load(file.read_text()).get("kind")
            assert kind is None or kind in table.names


# --- words --------------------------------------------------------------------------------------------------------


@of_every_entry
def test_it_is_offered_and_documented(group, name):
    assert set(choices_of(group, name)) <= set(all_choices([])[group])
    words = rf"\b{name.replace('_', '[-_ ]')}"
    found = re.search(words, PAGES, re.IGNORECASE) is not None  # in full, a failure would print all pages
    assert found, f"{group}={name}: no page of docs/ has a word on it; write one where its group is"


def test_the_help_fits_into_80_columns():
    assert max(map(len, help_text([]).splitlines())) <= 80


@of_every_job
def test_a_job_is_whole(name):
    job = JOBS[name]
    assert callable(load(job.run))
    assert isinstance(example_of("job", name), tuple)
    assert name in help_text([])
    assert f"job={name}" in PAGES
    assert [other.name for other in JOBS if other.file == job.file] == [name], "one would overwrite the other's result"


@of_every_job
def test_what_a_sweep_ranks_by_is_in_its_table(name):
    job = JOBS[name]
    assert {key for key, _ in job.ranking} <= {key for key, _ in job.columns.values()}
    assert {sign for _, sign in job.ranking} <= {-1, 1}
