"""Interpolations: values in the place of all, and expressions kept of those that read the environment."""

import copy

import pytest

from accumtrain.config.interpolation import (
    FromEnvironment,
    check_expressions,
    resolve_interpolations,
    restore_expressions,
)
from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.errors import ConfigError

DATA = {"kind": "folder", "path": "${oc.env:TOKEN}/${run.seed}"}


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("NUMBER", "5")
    monkeypatch.setenv("LIST", "[secret]")


def test_what_reads_the_environment_is_used_but_not_saved():
    config = from_mapping({"data": DATA, "run": {"seed": 3, "dir": "${data.path}"}})
    assert (config.data.path, config.run.dir) == ("secret/3", "secret/3")
    saved = to_mapping(config)
    assert (saved["data"]["path"], saved["run"]["dir"]) == ("${oc.env:'TOKEN'}/3", "${oc.env:'TOKEN'}/3")
    assert "secret" not in str(saved)
    assert from_mapping(saved) == config


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${log.every}", "10"),
        (r"\${log.every}", "${log.every}"),
        (r"a\\${log.every}", "a\\10"),
        (r"a\\\${x}", r"a\${x}"),
        ("${oc.decode:${oc.env:TOKEN}}", "secret"),
        ("${oc.env:NOWHERE,else}", "else"),
        (r"a\b", r"a\b"),
    ],
)
def test_a_text_survives_being_saved(written, value):
    mapping = {"run": {"dir": written}, "log": {"every": 10}}
    found = resolve_interpolations(mapping)
    assert str(found["run"]["dir"]) == value
    again = resolve_interpolations(restore_expressions(found))
    assert again == found
    assert isinstance(again["run"]["dir"], FromEnvironment) == ("oc.env" in written)


@pytest.mark.parametrize("written", ["${run.name}", "${.name}", "${oc.select:run.name}", "${run.name}-${oc.env:TOKEN}"])
def test_a_saved_text_stands_for_no_other_key(written, monkeypatch):
    monkeypatch.setenv("IT'S", "5$")
    name = r"${oc.env:'IT\'S'}\${x}${oc.env:NOWHERE,'it\\\'s'}"
    found = resolve_interpolations({"run": {"name": name, "dir": written}})
    saved = restore_expressions(found)
    check_expressions(saved)
    assert found["run"]["dir"].startswith(r"5$${x}it\'s")
    assert resolve_interpolations(saved) == found
    assert "5$" not in str(saved)
    with pytest.raises(ConfigError, match=r"run\.dir=.* stands for other values"):
        check_expressions({"run": {"dir": written}})


def test_a_number_is_no_secret():
    config = from_mapping({"log": {"every": "${oc.decode:${oc.env:NUMBER}}"}})
    assert to_mapping(config)["log"]["every"] == 5


def test_a_copy_still_knows_its_expression():
    assert copy.deepcopy(FromEnvironment("secret", "${oc.env:TOKEN}")).expression == "${oc.env:TOKEN}"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("${oc.env:NOWHERE}", "Environment variable 'NOWHERE' not found"),
        ("${nowhere}", "Interpolation key 'nowhere' not found"),
        ("${run.dir}", "Recursive interpolation detected"),
        ("${oc.decode:${oc.env:LIST}}", "the environment gives one text or number, not a list or mapping"),
        ("${open", "no viable alternative|token recognition error|mismatched input"),
        ("${run:dir}", "Unsupported interpolation type run"),
    ],
)
def test_an_interpolation_without_a_value(written, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_mapping({"run": {"dir": written}})
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
