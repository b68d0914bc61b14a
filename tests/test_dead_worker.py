"""A run of tests one of whose workers dies ends, red, and says which test it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIES = "os.kill(os.getpid(), signal.SIGSEGV)"
OF_ONE_WORKER = "if os.environ.get('PYTEST_XDIST_WORKER') == 'gw1':"
BEGIN = "import os, signal, time\n"
TESTS = "def test_one(): time.sleep(0.1)\ndef test_two(): {}\ndef test_three(): pass\n"
FILES = {f"test_{number}.py": BEGIN + TESTS.format("pass") for number in range(6)}
DURING_A_TEST = {"test_1.py": BEGIN + TESTS.format(DIES), "test_0.py": BEGIN + TESTS.format("time.sleep(600)")}
DURING_COLLECTION = {"test_1.py": f"{BEGIN}{OF_ONE_WORKER} {DIES}\n"}
AT_THE_END = {"conftest.py": f"{BEGIN}def pytest_sessionfinish():\n    {OF_ONE_WORKER} {DIES}\n"}


@pytest.mark.parametrize(
    ("files", "where"),
    [
        (DURING_A_TEST, "in test_1.py::test_two"),  # the other worker's test would take ten minutes
        (DURING_COLLECTION, "outside of tests"),
        (AT_THE_END, "outside of tests"),
    ],
)
def test_the_run_ends(files, where, tmp_path):
    for name, text in {**FILES, **files}.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "conftest.py").open("a") as hooks:
        hooks.write("from tests.conftest import pytest_testnodedown\n")
    command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile", "--rootdir", str(tmp_path)]
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of ours
    environment = {**outer, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stdout
    assert re.search(rf"worker gw\d died {where}", done.stdout), done.stdout
