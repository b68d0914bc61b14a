"""What Python costs a run of a small model: the training loop around its compiled calls (about two minutes).

    .venv/bin/python benchmarks/host.py

A real run with every compiled call timed, looked at in its second half, when calls have their length. `outside`: the
share of the wall time in no call, and the same per micro-step. `starting`: what a call costs beside its work (the
median of calls that have nothing to do) times the calls, per micro-step. Progress and logging are part of it,
evaluations and checkpoints are not.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from composed import compose
from workbench import tf

from accumtrain.config.schema import Config
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.jobs import dispatch, session

DIGITS = ("data=digits", "batch_size=64", "accum.steps=4")
MNIST_SIZE = ("data=synthetic", "data.image_size=28", "batch_size=256", "accum.steps=4")
CASES = {
    "lenet5, digits": ("model=lenet5", *DIGITS, "train.steps=2000"),
    "lenet5, 28 x 28": ("model=lenet5", *MNIST_SIZE, "train.steps=800"),
    "revnet38, digits": ("model=revnet38", *DIGITS, "train.steps=100"),
}
NOTHING_ELSE = ("eval.every=100000", "checkpoint.every=100000", "run.name=host")
EMPTY_CALLS = 101


class TimedStep(Step):
    """A step that notes begin, end and micro-steps of each compiled call that jobs/train.py makes, and which commit."""

    def __init__(self, window: Window, *arguments: Any, **options: Any):
        super().__init__(window, *arguments, **options)
        self.calls: list[tuple[float, float, int]] = []
        self._committed = 0  # number of calls up to the last one with a commit
        self._micro_steps, self._batches = window.micro_steps, None

    def prepare(self, batches: Any) -> Any:
        self._batches = batches
        return super().prepare(batches)

    def accumulate(self, batches: Any, count: int = 1) -> None:
        with self._timed(count):
            super().accumulate(batches, count)

    def commit(self, *, partial: bool = False) -> dict[str, tf.Tensor]:
        with self._timed(0, commits=True):
            return super().commit(partial=partial)

    def updates(self, batches: Any, count: int = 1) -> dict[str, tf.Tensor]:
        with self._timed(count * self._micro_steps, commits=True):
            return super().updates(batches, count)

    @contextlib.contextmanager
    def _timed(self, micro_steps: int, *, commits: bool = False) -> Iterator[None]:
        started = time.perf_counter()
        yield
        tf.test.experimental.sync_devices()
        self.calls.append((started, time.perf_counter(), micro_steps))
        if commits:
            self._committed = len(self.calls)

    def until_last_commit(self) -> list[tuple[float, float, int]]:
        """The calls of the training loop. The measurement of workspaces, after the last evaluation, makes more."""
        return self.calls[: self._committed]

    def empty_call(self) -> float:
        """Seconds of a call that has nothing to do."""
        seconds = []
        for _ in range(EMPTY_CALLS):
            started = time.perf_counter()
            super().accumulate(self._batches, 0)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)


def timed_run(config: Config) -> TimedStep:
    """The step of a whole run."""
    made: list[TimedStep] = []

    def make(*arguments: Any, **options: Any) -> TimedStep:
        made.append(TimedStep(*arguments, **options))
        return made[-1]

    with mock.patch.object(session, "Step", make), contextlib.redirect_stdout(io.StringIO()):
        dispatch.run(config)
    return made[0]


def show(name: str, overrides: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        timed = timed_run(compose(*overrides, *NOTHING_ELSE, f"run.dir={scratch}"))
    calls = timed.until_last_commit()
    calls = calls[len(calls) // 2 :]
    wall = calls[-1][1] - calls[0][0]
    outside = wall - sum(end - begin for begin, end, _ in calls)
    micro_steps = sum(count for _, _, count in calls)
    starting = len(calls) * timed.empty_call()
    print(
        f"{name:<18}{1e3 * wall / micro_steps:8.3f} ms a micro-step, {micro_steps / len(calls):5.1f} of them a call;  "
        f"outside {outside / wall:6.2%}, {1e6 * outside / micro_steps:6.1f} us a micro-step;  "
        f"starting {starting / wall:6.2%}, {1e6 * starting / micro_steps:6.1f} us",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    for case in parser.parse_args().cases:
        show(case, CASES[case])
