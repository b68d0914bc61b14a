"""Which tests execute each line of the package, and how long each of them takes: recorded once for each test file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutation.mutations import Mutant


@dataclass
class Recorded:
    """What the tests of one file execute.

    Attributes:
        seconds: of each test that passes, by its pytest name.
        lines: path of a file of the package -> line -> tests that execute it.
        files: fingerprints of the test file and of those files.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def is_current(self, root: Path) -> bool:
        """Whether none of the files has changed since."""
        return all(fingerprint(root / file) == known for file, known in self.files.items())

    def of_line(self, path: str, line: int) -> set[str]:
        """The tests that execute a line."""
        return self.seconds.keys() & self.lines.get(path, {}).get(str(line), [])

    def of_file(self, path: str) -> set[str]:
        """The tests that execute any line of a file."""
        return self.seconds.keys() & {test for tests in self.lines.get(path, {}).values() for test in tests}


def record(root: Path, test_file: str, rooms: Iterable[str], output: Path) -> None:
    """Runs the fast tests of a file once, and writes what they execute. For a process of its own.

    Args:
        rooms: folders or files of the package whose lines count.
    """
    measured = coverage.Coverage(
        data_file=None, include=[f"{root}/{room}/**" for room in rooms], concurrency="thread", config_file=False
    )
    plugin = _Contexts(measured)
    measured.start()
    pytest.main([*PYTEST, test_file], plugins=[plugin])
    measured.stop()
    data = measured.get_data()
    result = Recorded(plugin.seconds)
    for file in data.measured_files():
        by_line = data.contexts_by_lineno(file).items()
        lines = {str(line): [context for context in contexts if context] for line, contexts in by_line}
        result.lines[str(Path(file).relative_to(root))] = {line: tests for line, tests in lines.items() if tests}
    result.files = {file: fingerprint(root / file) for file in [test_file, *result.lines]}
    output.write_text(json.dumps(vars(result)))


PYTEST = ("-q", "-p", "no:cacheprovider", "--no-header")


class _Contexts:
    """A plugin of pytest: the lines that a test executes carry its name."""

    def __init__(self, measured: coverage.Coverage):
        self.measured, self.seconds = measured, dict[str, float]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration


def fingerprint(file: Path) -> str:
    """Changes whenever the file does."""
    return hashlib.sha256(file.read_bytes() if file.exists() else b"").hexdigest()[:16]


def chosen(recorded: Sequence[Recorded], mutant: Mutant, seconds: float) -> tuple[list[str], float]:
    """The tests to run for a mutant, and how long they take: those of its own room first, one of each file in turn.

    Of each file the fastest are first. So the tests that find room in few seconds look at different things.

    Args:
        seconds: the most that they may take together.
    """
    room = mutant.path.split("/")[1]
    order = []
    for each in recorded:
        executing = each.of_file(mutant.path) if mutant.by_import else each.of_line(mutant.path, mutant.line)
        for turn, test in enumerate(sorted(executing, key=lambda test: each.seconds[test])):
            order.append((not test.startswith(f"tests/{room}/"), turn, each.seconds[test], test))
    tests: list[str] = []
    total = 0.0
    for *_, taken, test in sorted(order):
        if tests and total + taken > seconds:
            continue
        tests.append(test)
        total += taken
    return tests, total
