"""python -m tests.mutation accumtrain/optim: which changes of the code does no test notice?

Each mutant (mutations.py) runs in a process of its own against the tests that execute its line. Nothing is written but
into the folder of --state: which tests execute which line, and the survivors. Survivors that explained.yaml names, with
the reason why nothing can or need notice them, are counted apart.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.mutation.covering_tests import PYTEST, Recorded, chosen, record
from tests.mutation.explained import read_explained
from tests.mutation.mutations import Mutant, read_mutants
from tests.mutation.warm_process import TIMED_OUT, InPlaceOf, start, wait_for_one, warm_up

ROOT = Path(__file__).parents[2]
ROOMS = ("accumtrain/engine", "accumtrain/models", "accumtrain/optim", "accumtrain/backprop")
TESTS = (
    *("backprop", "engine", "models", "optim", "planted"),
    *(f"contract/test_{name}.py" for name in ("losses_and_schedules", "models", "optimizers")),
    *(f"jobs/test_{name}.py" for name in ("verify", "weights")),
    *(f"keras/test_{name}.py" for name in ("adafactor_mistakes", "fit", "fit_refused")),
)
SURVIVORS = "survivors.json"
START_UP, SLOWER = 30.0, 6.0  # seconds, and how many times its tests' usual time, after which a mutant hangs
KILLED, HUNG, SURVIVED, EXPLAINED_ONE, UNTESTED = "killed", "hung", "survived", "explained", "no test"


@dataclass(frozen=True)
class Work:
    """A mutant, its tests, and their usual time."""

    mutant: Mutant
    tests: list[str]
    seconds: float


def main() -> int:
    arguments = _arguments()
    state: Path = arguments.state
    state.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    warm_up()
    recorded = _recorded(state, arguments.processes)
    explained = read_explained()
    outcomes: dict[str, Counter[str]] = {}
    work = []
    for path in _files(arguments.paths):
        outcomes[path] = Counter()
        for mutant in _sample(path, arguments):
            tests, seconds = chosen(recorded, mutant, arguments.seconds)
            if mutant.name in explained.get(path, {}):
                outcomes[path][EXPLAINED_ONE] += 1
            elif not tests:
                outcomes[path][UNTESTED] += 1
                print(f"no test executes {path}:{mutant.line} {mutant.name}", flush=True)
            else:
                work.append(Work(mutant, tests, seconds))
    survivors: list[str] = []
    _write(state, survivors)
    if work and not _pass_without_a_change(work[0], state):
        print(f"the tests of {work[0].mutant.path} fail without any change: the log in {state} says why")
        return 2
    for done, (each, outcome) in enumerate(_outcomes(work, arguments.processes, state), 1):
        outcomes[each.mutant.path][outcome] += 1
        if outcome == SURVIVED:
            survivors.append(each.mutant.name)
            _write(state, survivors)
            print(f"survived {len(each.tests)} tests: {each.mutant.path}:{each.mutant.line} {each.mutant.name}")
        print(f"{done} of {len(work)}", end="\r" if sys.stdout.isatty() else "\n", flush=True)
    _print_table(outcomes)
    return 1 if survivors else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="*", default=ROOMS, help="files and folders of the package")
    parser.add_argument("--sample", type=int, help="mutants of each file, drawn at random but always the same")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests that a mutant must survive, at most")
    parser.add_argument("--processes", type=int, default=2, help="at the same time")
    parser.add_argument("--again", action="store_true", help="only the survivors of the last run")
    parser.add_argument("--matching", default="", help="only mutants with this text in their name")
    parser.add_argument("--state", type=Path, default=ROOT / ".mutants", help="folder for what is recorded")
    return parser.parse_args()


def _files(paths: list[str]) -> list[str]:
    """The files of the paths, each relative to the root."""
    found = [[ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py")) for path in paths]
    return [str(file.relative_to(ROOT)) for files in found for file in files]


def _sample(path: str, arguments: argparse.Namespace) -> list[Mutant]:
    mutants = [mutant for mutant in read_mutants(ROOT, path) if arguments.matching in mutant.name]
    if arguments.again:
        again = set(json.loads((arguments.state / SURVIVORS).read_text()))
        mutants = [mutant for mutant in mutants if mutant.name in again]
    if arguments.sample is None or arguments.sample >= len(mutants):
        return mutants
    return random.Random(path).sample(mutants, arguments.sample)


# --- which tests execute which line -----------------------------------------------------------------------------


def _recorded(state: Path, processes: int) -> list[Recorded]:
    """What each test file executes; recorded anew where it, or what it executes, has changed."""
    folders = [ROOT / "tests" / name for name in TESTS]
    found = [file for folder in folders for file in (folder.rglob("test_*.py") if folder.is_dir() else [folder])]
    files = sorted(str(file.relative_to(ROOT)) for file in found)
    outputs = {file: state / f"{file.removesuffix('.py').replace('/', '-')}.json" for file in files}
    missing = [file for file in files if not outputs[file].exists() or not _read(outputs[file]).is_current(ROOT)]
    running: dict[int, float] = {}
    while missing or running:
        while missing and len(running) < processes:
            file = missing.pop()
            child = start(partial(record, ROOT, file, ROOMS, outputs[file]), outputs[file].with_suffix(".log"))
            running[child] = time.monotonic() + 1200.0
            print(f"recording {file}", flush=True)
        ended, status = wait_for_one(running)
        del running[ended]
        if status:
            print(f"no recording: the end of {state}/*.log says why", flush=True)
    return [_read(output) for output in outputs.values() if output.exists()]


def _read(output: Path) -> Recorded:
    return Recorded(**json.loads(output.read_text()))


def _write(state: Path, survivors: list[str]) -> None:
    (state / SURVIVORS).write_text(json.dumps(survivors))


# --- mutants ----------------------------------------------------------------------------------------------------


def _pass_without_a_change(work: Work, state: Path) -> bool:
    unchanged = replace(work.mutant, source=(ROOT / work.mutant.path).read_text())
    ((_, outcome),) = _outcomes([replace(work, mutant=unchanged)], 1, state)
    return outcome == SURVIVED


def _outcomes(work: list[Work], processes: int, state: Path) -> Iterator[tuple[Work, str]]:
    """Yields each mutant with its outcome, in the order in which they end."""
    waiting, running, limits = list(reversed(work)), dict[int, Work](), dict[int, float]()
    while waiting or running:
        while waiting and len(running) < processes:
            each = waiting.pop()
            child = start(partial(_test, each), state / f"mutant{len(work) - len(waiting)}.log")
            running[child] = each
            limits[child] = time.monotonic() + START_UP + SLOWER * each.seconds
        ended, status = wait_for_one(limits)
        del limits[ended]
        yield running.pop(ended), {0: SURVIVED, TIMED_OUT: HUNG}.get(status, KILLED)


def _test(work: Work) -> int:
    """Runs the tests of a mutant, in a child. Returns pytest's exit code, 0 if all of them pass."""
    import pytest

    sys.meta_path.insert(0, InPlaceOf(ROOT, work.mutant.path, work.mutant.source))
    return int(pytest.main([*PYTEST, "--exitfirst", *work.tests]))


def _print_table(outcomes: dict[str, Counter[str]]) -> None:
    columns = (KILLED, HUNG, SURVIVED, EXPLAINED_ONE, UNTESTED)
    print(f"{'file':44}" + "".join(f"{column:>11}" for column in columns))
    for path, counts in [*outcomes.items(), ("all", sum(outcomes.values(), Counter()))]:
        print(f"{path:44}" + "".join(f"{counts[column]:11}" for column in columns))


if __name__ == "__main__":
    sys.exit(main())
