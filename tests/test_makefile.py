"""What make does with an environment that is there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUP = "python3 -m venv {}.venv\n"


@pytest.fixture
def folder(tmp_path):
    """A ready environment of Python 3.9.0 beside what make reads."""
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements/constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    python.write_text("#!/bin/sh\necho Python 3.9.0\n")
    python.chmod(0o755)
    (tmp_path / ".venv/.ready").touch()
    return tmp_path


def make(folder, *arguments, target="memory"):
    """What `make memory`, or another target, would do."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "ARGS")}
    command = ["make", "--no-print-directory", "--dry-run", target, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)


def test_an_environment_that_is_ready_is_used(folder):
    done = make(folder)
    assert "venv " not in done.stdout
    assert done.stderr == ""


def test_train_shows_accumulation_unless_told_otherwise(folder):
    assert ".venv/bin/accumtrain accum.steps=4" in make(folder, target="train").stdout.splitlines()
    asked = make(folder, "ARGS=model=lenet5", target="train").stdout
    assert ".venv/bin/accumtrain model=lenet5" in asked.splitlines()


def test_train_says_how_to_go_on_and_test_how_long_it_takes(folder):
    assert make(folder, target="train").stdout.endswith(
        'echo "to go on: . .venv/bin/activate, then accumtrain --help"\n'
    )
    tested = make(folder, target="test").stdout
    assert tested.index('echo "the everyday tests take up to 10 minutes') < tested.index(".venv/bin/pytest")


@pytest.mark.parametrize(("given", "runtime"), [([], "jax"), (["RUNTIME=tensorflow"], "tensorflow")])
def test_the_environment_of_a_tpu_is_that_of_its_runtime(folder, given, runtime):
    shutil.copy(ROOT / "requirements/tpu.txt", folder / "requirements")
    done = make(folder, *given, target="tpu").stdout
    assert f".venv-tpu-{runtime}/bin/accumtrain device=tpu device.runtime={runtime}" in done


def test_another_python_beside_it_is_told(folder):
    said = ".venv is there and has Python 3.9.0, which is used; for PYTHON=python3: make clean, then again"
    assert said in make(folder, "PYTHON=python3").stderr
    assert make(folder, "PYTHON=.venv/bin/python").stderr == ""


@pytest.mark.parametrize(("link", "setup"), [(False, "--clear "), (True, " ")])
def test_it_is_made_from_nothing_when_the_pins_have_changed(folder, link, setup):
    """What a link leads to is not removed."""
    if link:
        (folder / ".venv").rename(folder / "shared")
        (folder / ".venv").symlink_to("shared")
    (folder / "requirements/constraints.txt").touch()
    os.utime(folder / ".venv/.ready", (1, 1))
    assert SETUP.format(setup) in make(folder).stdout


def test_a_setup_that_failed_is_gone_on_with(folder):
    (folder / ".venv/.ready").unlink()
    assert SETUP.format(" ") in make(folder).stdout
