"""The program of a child: accumtrain itself, or that of a user who calls main()."""

import os
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec

import pytest

from accumtrain.config.registries import has_only_builtin_entries
from accumtrain.config.schema import Config
from accumtrain.models.config import MODELS
from accumtrain.process import program
from accumtrain.process.program import (
    CHILD,
    VARIABLE,
    child_command,
    is_own_command,
    is_own_run,
    own_program,
    remember_program,
)
from accumtrain.registry import Entry, with_kind
from accumtrain.tasks.config import LOSSES
from tests.programs import run_python

OWN = """
import accumtrain

def nothing(config, seed):
    raise accumtrain.DataError(f"no {config.kind} with {seed}")

accumtrain.register_data("nothing", nothing)
if __name__ == "__main__":
    accumtrain.main()
"""


@pytest.fixture(autouse=True)
def _no_program(monkeypatch):
    """No program is remembered, and what a test remembers is undone."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ({}, ["-m", "accumtrain"]),
        ({"__spec__": None, "__file__": "/there/mine.py"}, ["/there/mine.py"]),
        ({"__spec__": None, "__file__": "mine.py"}, [os.path.abspath("mine.py")]),  # noqa: PTH100
        ({"__spec__": ModuleSpec("mine.train", None), "__file__": "/mine/train.py"}, ["-m", "mine.train"]),
        ({"__spec__": ModuleSpec("mine.__main__", None), "__file__": "/mine/__main__.py"}, ["-m", "mine"]),
    ],
)
def test_own_program(module, arguments):
    remember_program(module)
    assert own_program() == [sys.executable, *arguments]
    assert child_command() == [*own_program(), CHILD]


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ({"__spec__": ModuleSpec("accumtrain.__main__", None)}, True),
        ({"__spec__": None, "__file__": "/env/bin/accumtrain"}, True),
        ({"__spec__": None, "__file__": "/there/mine.py"}, False),
        ({"__spec__": ModuleSpec("mine.__main__", None)}, False),
        ({}, False),
    ],
    ids=["-m", "script", "own file", "own package", "library"],
)
def test_is_own_command(monkeypatch, module, own):
    remember_program(module)
    assert is_own_command() is own
    monkeypatch.setattr(program, "entry_points", lambda group: ["an extension"])
    assert not is_own_command()


def test_what_is_own_run(monkeypatch):
    monkeypatch.setenv(VARIABLE, '["-m", "accumtrain"]')
    assert is_own_run(Config())
    for table, of in ((MODELS, "model"), (LOSSES, "loss")):
        chosen = getattr(Config(), of)
        kept, config = table[chosen.kind], with_kind("mine", type(chosen))
        for row, listed in (
            (Entry(config, "mine.code:build"), True),
            (Entry(config, print), True),
            (Entry(config, kept.build), False),  # of what is in the memory of this process
        ):
            with monkeypatch.context() as patch:
                patch.setattr(table, "entries", dict(table.entries))
                patch.setattr(table, "_unlisted", set())
                table.add(row, listed=listed)
                assert not is_own_run(replace(Config(), **{of: config()}))
                assert not has_only_builtin_entries(replace(Config(), **{of: config()}))
    monkeypatch.setenv(VARIABLE, '["mine.py"]')
    assert not is_own_run(Config())
    assert has_only_builtin_entries(Config())


@pytest.mark.parametrize("start", [["mine.py"], pytest.param(["-m", "mine"], marks=pytest.mark.slow)], ids=" ".join)
def test_a_child_knows_the_choices_of_the_users_program(tmp_path, start):
    (tmp_path / "mine.py").write_text(OWN)
    done = run_python(*start, "job=plan", "data=nothing", "run.seed=7", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "error: no nothing with 7\n"), "a probe has opened the data"
