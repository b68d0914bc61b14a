"""Choices that programs of users and installed packages add to the command line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from accumtrain.cli import command as extensions
from accumtrain.config.jobs import JOBS
from accumtrain.config.registries import (
    REGISTRIES,
    list_added_modules,
    register_data,
    register_job,
    register_loss,
    register_model,
)
from accumtrain.models.config import ModelConfig

REGISTER = """
from accumtrain.config.registries import register_data

def register():
    register_data("noise", "an_extension:open_noise")
"""


@dataclass(kw_only=True)
class TinyConfig(ModelConfig):
    width: int = 3
    depth: int


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """Undo what a test adds."""
    for registry in (*REGISTRIES.values(), JOBS):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Install a package with one module, and an entry point that names it or something in it."""

    def install(code, value="an_extension"):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "an_extension.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "package")
        monkeypatch.delitem(sys.modules, "an_extension", raising=False)
        point = EntryPoint("tiny", value, extensions.EXTENSIONS)
        monkeypatch.setattr(extensions, "entry_points", lambda group: [point] if group == extensions.EXTENSIONS else [])

    return install


@pytest.mark.parametrize("name", ["3dnet", "a net", "net/2", "", "digits"])
def test_names_of_entries(name):
    message = "declared already" if name == "digits" else "a name is a letter or _, then letters, digits, - and _"
    with pytest.raises(ValueError, match=message):
        register_data(name, "mine:open_net")


def test_a_registered_entry_is_a_choice_with_its_keys(command, seen):
    register_model("mynet", "mine:build", TinyConfig)  # a name of its own, as Hydra keeps it for later tests
    register_loss("hinge", "mine:hinge")
    assert command("model=mynet", "model.depth=2", "loss=hinge").code == 0
    assert (seen[0].model.kind, seen[0].model.width, seen[0].model.depth) == ("mynet", 3, 2)
    assert seen[0].loss.kind == "hinge"
    assert "model.depth has no value; add model.depth=<value>" in command("model=mynet").err
    assert "model.snap_bits" in command("model=mynet", "model.depth=2", "model.snap_bits=3").err
    answer = command("--help")
    assert "mynet" in answer.out
    assert "hinge" in answer.out


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        ("device=tpu", "choose device=cpu or gpu"),
        ("data.mixup=0.2", "leave them out"),
    ],
)
def test_what_does_not_go_with_a_loss_of_the_whole_batch(command, refused, seen, other, remedy):
    register_loss("pairs", "mine:pairs", metrics={}, whole_batch=True)
    assert remedy in refused("loss=pairs", "device=cpu", other)
    assert command("loss=pairs", "device=cpu").code == 0


@pytest.mark.parametrize(
    ("code", "value"), [(REGISTER, "an_extension:register"), (f"{REGISTER}\nregister()", "an_extension")]
)
def test_an_installed_extension_adds_its_entries(command, seen, installed, code, value):
    installed(code, value)
    assert command("data=noise", "data.image_size=8").code == 0
    assert (seen[0].data.kind, seen[0].data.image_size) == ("noise", 8)


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        ("1 / 0", "an_extension", "ZeroDivisionError: division by zero"),
        ("", "an_extension:register", "AttributeError: "),
        (REGISTER.replace("noise", "digits"), "an_extension:register", "ValueError: data.kind=digits is declared"),
    ],
)
def test_an_extension_that_fails_is_named(refused, installed, code, value, reason):
    installed(code, value)
    message = refused()
    assert message.startswith(f"error: the installed extension tiny ({value}) fails: {reason}")
    assert message.endswith("; fix it, or uninstall its package\n")
    assert message.count("\n") == 1


@pytest.mark.parametrize(("attributes", "scope"), [({}, "try"), ({"scope": "train"}, "train")])
def test_a_job_has_the_scope_that_it_is_given(attributes, scope):
    register_job("count", "an_extension:count", **attributes)
    assert JOBS["count"].scope == scope


def test_an_unknown_scope():
    with pytest.raises(ValueError, match="job count: scope='all' is not one of train, try, trained, runs"):
        register_job("count", "an_extension:count", scope="all")


def test_all_code_that_was_registered_counts_as_added():
    register_job("count", "a_job:count", check="a_check:check")
    register_loss("plain", "a_loss:build", metrics={"wrong": "a_metric:wrong"})
    assert {"a_job", "a_check", "a_loss", "a_metric"} <= list_added_modules()


def test_a_choice_of_accumtrain_can_not_be_replaced(refused, installed):
    """lenet5.yaml is of kind lenet, so the name is free among the kinds."""
    installed("import accumtrain\n\naccumtrain.register_model('lenet5', 'an_extension:build')\n")
    assert "model=lenet5: an_extension adds a choice of this name, which accumtrain has already" in refused()


JOB = """
from pathlib import Path
from accumtrain.config.registries import register_job

def count(config):
    %s

register_job("count", "an_extension:count")
"""


@pytest.mark.parametrize(
    ("line", "whose"),
    [
        ("return {}['a']", "a bug in an_extension, which adds a choice to accumtrain; the lines above show where"),
        ("Path('no').read_text()", "a bug in an_extension, which adds a choice to accumtrain; the lines above"),
        ("raise PermissionError('not today')", "a bug in an_extension, which adds a choice"),
        (
            "from accumtrain.console import table; table('', ['a'], [[]])",
            "a bug in accumtrain, or in what an_extension adds",
        ),
    ],
)
def test_an_error_is_of_the_code_that_raises_it(command, installed, line, whose):
    installed(JOB % line)
    answer = command("job=count")
    assert answer.code == 1
    assert f"error: this is {whose}" in answer.err
    assert "Traceback" in answer.err
