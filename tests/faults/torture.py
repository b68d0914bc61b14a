"""Stops a training again and again, at random moments of all its phases, and compares the end with an undisturbed one.

    make torture ARGS="--stops 1000 [--minutes 60] [--workers 2 | --forked] [--polite]"

A process is started, killed by SIGKILL after a random time and started again, until its training ends; then the next
training begins. After each kill the newest checkpoint must be whole and at most one update behind the last record, as
checkpoint.every=1. The weights at the end of each training must be those of the undisturbed one, bit for bit. With
--polite the process gets one of the signals that ask it to stop, and must end with exit code 75. Prints the signals by
phase and ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

from accumtrain.cli.main import main as command_line
from accumtrain.cli.workers import start_workers
from accumtrain.process.program import own_program
from accumtrain.runs.checkpoint_store import UNFINISHED, CheckpointStore, DamagedError
from accumtrain.runs.contents import read_records

POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
START = 0.1  # seconds of CPU time that Python takes to start, about
UPDATES, EVALUATE_EVERY = 80, 5
OVERRIDES = [
    *("model=lenet5", "data=synthetic", "data.image_size=32", "data.train_examples=2048", "data.test_examples=512"),
    *("batch_size=256", "accum.dtype=float64", f"train.steps={UPDATES}", f"eval.every={EVALUATE_EVERY}"),
    *("checkpoint.every=1", "log.every=1"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100, help="how many times a process is stopped")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further training after so long")
    parser.add_argument("--polite", action="store_true", help="by signals that ask it to stop")
    parser.add_argument("--workers", type=int, default=1, help="processes; every third start has one process only")
    parser.add_argument("--forked", action="store_true", help="start without importing: more stops of what comes after")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    launch = Forked if asked.forked else in_a_new_process
    for each in POLITE:
        signal.signal(each, signal.SIG_DFL)  # for the children too: a shell makes what runs behind it ignore Ctrl-C
    chance = random.Random(asked.seed)
    signals = POLITE if asked.polite else (signal.SIGKILL,)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="accumtrain-torture-") as name:
        folder = Path(name)
        started = time.monotonic()
        if any(process.wait() for process in start(folder / "whole", asked.workers, launch)):
            sys.exit("the undisturbed run failed")
        seconds = time.monotonic() - started
        expected = state(folder / "whole")
        print(f"undisturbed: {UPDATES} updates in {seconds:.1f} s", flush=True)
        trainings = starts = 0
        while tally.phases.total() < asked.stops and time.monotonic() - started < 60 * asked.minutes:
            trainings += 1
            run = folder / f"run-{trainings}"
            ended = False
            while not ended:
                starts += 1
                workers = asked.workers if starts % 3 else 1
                ended = disturb(start(run, workers, launch), run, chance.choice(signals), chance, seconds, tally)
            if different := differences(expected, state(run)):
                tally.wrong.append(f"training {trainings}: {different} values differ")
            print(f"training {trainings}: {tally.so_far()}", flush=True)
            shutil.rmtree(run)
    for (name, sent), count in sorted(tally.phases.items()):
        print(f"{name:20} {sent:8} {count:5}")
    median, longest = statistics.median(tally.seconds_to_end), max(tally.seconds_to_end)
    print(f"seconds from a signal to the end: median {median:.2f}, {longest:.2f}")
    print(f"{tally.phases.total()} signals in {trainings} trainings and {starts} starts, {len(tally.wrong)} wrong")
    return 1 if tally.wrong else 0


@dataclass
class Tally:
    """What has been sent and found so far."""

    phases: Counter[tuple[str, str]] = field(default_factory=Counter)  # by phase and signal
    seconds_to_end: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def so_far(self) -> str:
        counts: Counter[str] = Counter()
        for (name, _), count in self.phases.items():
            counts[name] += count
        return f"{self.phases.total()} signals so far {dict(counts)}, wrong: {self.wrong}"


def disturb(
    processes: Sequence[Any], run: Path, sent: signal.Signals, chance: random.Random, seconds: float, tally: Tally
) -> bool:
    """Sends a signal to one of the processes of a training. Returns whether the training has ended."""
    before = newest_whole(run)
    victim = chance.choice(processes)
    allowed = {0, 75} if sent in POLITE else {-signal.SIGKILL, 0, 2, 75}  # other workers than the killed one: 75
    try:
        if chance.random() < 0.5:
            await_update(run, victim)
            victim.wait(chance.uniform(0.0, 0.3) * seconds)
        else:
            victim.wait(chance.uniform(0.02, 1.0) * seconds)
    except subprocess.TimeoutExpired:
        phase_before = "start of Python" if cpu_seconds(victim) < START else phase(run, before)
        began = time.monotonic()
        victim.send_signal(sent)
        codes = [process.wait() for process in processes]
        tally.seconds_to_end.append(time.monotonic() - began)
        tally.phases[phase_before if sent in POLITE else phase(run, before), sent.name] += 1
        check(run, before, tally.wrong)
        if phase_before == "start of Python":
            allowed |= {-sent}  # before the first line of ours
        if bad := set(codes) - allowed:
            tally.wrong.append(f"{run.name}: exit codes {bad} after {sent.name}")
        return sent in POLITE and not any(codes)
    if any(codes := [process.wait() for process in processes]):
        tally.wrong.append(f"{run.name}: exit codes {codes} without a signal")
    return True


def await_update(run: Path, process: Any) -> None:
    """Returns when there is a checkpoint of another update, or the process has ended."""
    names = listed(run)
    while listed(run) <= names and process.poll() is None:
        time.sleep(0.01)


def listed(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob("step-*")}


def cpu_seconds(process: Any) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


class Forked:
    """A training in a process that is forked from this one, which has imported TensorFlow and not used it."""

    def __init__(self, overrides: Sequence[str]):
        self._process = multiprocessing.get_context("fork").Process(target=self._train, args=(overrides,))
        self._process.start()
        self.pid = self._process.pid or 0  # it has one, as it is started

    @staticmethod
    def _train(overrides: Sequence[str]) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["accumtrain", *overrides]
        command_line()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a training", timeout or 0.0)
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def in_a_new_process(overrides: Sequence[str]) -> subprocess.Popen:
    return subprocess.Popen([*own_program(), *overrides], stdout=subprocess.DEVNULL)


Launch = Callable[[Sequence[str]], Any]  # returns a process, which has the methods of subprocess.Popen


def start(run: Path, workers: int, launch: Launch) -> list[Any]:
    overrides = [*OVERRIDES, f"accum.steps={4 // workers}", f"run.dir={run.parent}", f"run.name={run.name}"]
    if workers > 1:
        return start_workers(workers, [*overrides, "device.timeout=30"])  # that others wait for one that was killed
    return [launch(overrides)]


def newest_whole(run: Path) -> int:
    """The update of the newest whole checkpoint; -1 if there is none."""
    stores = (CheckpointStore(run / "checkpoints"), CheckpointStore(run / "checkpoints/best"))
    for saved in sorted((saved for store in stores for saved in store.newest_first()), key=lambda each: -each.step):
        try:
            saved.check()
        except DamagedError:
            continue
        return saved.step
    return -1


def check(run: Path, before: int, wrong: list[str]) -> None:
    now, records = newest_whole(run), read_records(run)
    logged = max((record["step"] for record in records), default=0)
    if now < before:
        wrong.append(f"{run.name}: update {before} was saved, now only {now}")
    if now >= 0 and now < logged - 1:
        wrong.append(f"{run.name}: update {logged} was made, saved is only {now}")


def phase(run: Path, before: int) -> str:
    """What the killed process was doing, by what it left."""
    now = newest_whole(run)
    if any(run.glob(f"checkpoints/**/{UNFINISHED}*")):
        return "save"
    if now == UPDATES and not (run / "summary.json").exists():
        return "close"
    if now in (-1, before):
        return "import, open, trace"
    tested = {record["step"] for record in read_records(run) if record["split"] == "test"}
    return "evaluation" if now % EVALUATE_EVERY == EVALUATE_EVERY - 1 and now + 1 not in tested else "updates"


def state(run: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"step-{UPDATES}" / "state"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name}


def differences(expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> int:
    assert expected.keys() == found.keys()
    return sum(int(np.sum(expected[name] != found[name])) for name in expected)


if __name__ == "__main__":
    sys.exit(main())
