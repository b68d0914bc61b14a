"""--share=<commit>: one of PARTS parts of the chosen tests, another for another commit, for MINUTES at most.

Who runs it for each commit has run all of them in time. Tests that are not reached are named at the end.
"""

from __future__ import annotations

import time
from zlib import crc32

import pytest

PARTS = 7
MINUTES = 10  # after which no test begins
NOT_REACHED = f"not reached within {MINUTES} minutes"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="COMMIT", help="the part of the tests that a commit has to run")


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    commit = config.getoption("--share")
    if commit is None:
        return
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_chosen = crc32(item.nodeid.encode()) % PARTS == int(commit[:8], 16) % PARTS
        (chosen if is_chosen else others).append(item)
    config.hook.pytest_deselected(items=others)
    # files in another order for another commit, so that not always the same are reached
    items[:] = sorted(chosen, key=lambda item: crc32(f"{commit} {item.path.name}".encode()))


class Clock:
    """Skips the tests of a share that begin too late."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() - self._started > 60 * MINUTES:
            pytest.skip(NOT_REACHED)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--share") is not None:
        config.pluginmanager.register(Clock())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NOT_REACHED in str(report.longrepr)]
    if skipped:
        terminalreporter.section(f"{len(skipped)} tests {NOT_REACHED}")
        for report in skipped:
            terminalreporter.write_line(report.nodeid)
