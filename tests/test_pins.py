"""The pins: every package once for each Python, and the same ones with hashes."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
FILES = sorted(path.name for path in REQUIREMENTS.glob("*.txt"))


def pins(file, python):
    """The versions by name, on Linux."""
    text = (REQUIREMENTS / file).read_text().replace("\\\n", " ")
    lines = [re.sub(r"--hash=\S+", "", line).strip() for line in text.splitlines() if not line.startswith("#")]
    where = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    asked = [pin for pin in map(Requirement, filter(None, lines)) if pin.marker is None or pin.marker.evaluate(where)]
    assert len({pin.name for pin in asked}) == len(asked), f"{file} names a package twice"
    return {pin.name: str(pin.specifier) for pin in asked}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("file", FILES)
def test_each_package_has_one_version(file, python):
    assert all(re.fullmatch(r"==[\w.]+", version) for version in pins(file, python).values())


@pytest.mark.parametrize("python", PYTHONS)
def test_the_hashed_pins_are_those_of_the_constraints(python):
    hashed, pinned = pins("hashed.txt", python), pins("constraints.txt", python)
    assert hashed.items() <= pinned.items(), "make lock"


def test_what_is_needed_is_hashed():
    project = (ROOT / "pyproject.toml").read_text()
    listed = project.split("\ndependencies = [")[1].split("\n]")[0]
    needed = {Requirement(text).name for text in re.findall(r'^    "([^"]+)"', listed, re.MULTILINE)}
    assert {"tensorflow", "rich"} <= needed
    for python in PYTHONS:
        assert needed <= pins("hashed.txt", python).keys(), "make lock"


def test_every_pin_has_a_hash():
    text = (REQUIREMENTS / "hashed.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert "://" not in text


def names(lines):
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines if line and not line.startswith("#")}


def test_a_tpu_s_file_pins_every_dependency_and_its_own_tensorflow():
    """requirements/tpu.txt is installed without a resolver: nothing that accumtrain needs may be missing from it."""
    lines = (REQUIREMENTS / "tpu.txt").read_text().splitlines()
    assert all("==" in line for line in lines if not line.startswith("#"))
    needed = names(line for line in requires("accumtrain") if "extra ==" not in line)
    assert "tensorflow" in needed
    assert needed - {"tensorflow"} | {"tensorflow-tpu", "libtpu", "pytest"} <= names(lines)
    assert "tensorflow" not in names(lines)
