"""What Python costs a run of a small model: the training loop around its compiled calls (about two minutes).

    .venv/bin/python benchmarks/host.py

A real run with every compiled call timed, looked at in its second half, when calls have their length. `outside`: the
share of the wall time in no call, and the same per micro-step. `starting`: what a call costs beside its work (the
median of calls that have nothing to do) times the calls, per micro-step. Progress and logging are part of it,
evaluations and checkpoints are not.
"""

import contextlib
import io
import statistics
import tempfile
import time
from typing import Any
from unittest import mock

from workbench import compose, tf

from accumtrain.config.schema import Config
from accumtrain.engine.step import Step
from accumtrain.jobs import train

DIGITS = ("data=digits", "batch_size=64", "accum.steps=4")
MNIST_SIZE = ("data=synthetic", "data.image_size=28", "batch_size=256", "accum.steps=4")
CASES = {
    "lenet5, digits": ("model=lenet5", *DIGITS, "train.steps=2000"),
    "lenet5, 28 x 28": ("model=lenet5", *MNIST_SIZE, "train.steps=800"),
    "revnet38, digits": ("model=revnet38", *DIGITS, "train.steps=100"),
}
NOTHING_ELSE = ("eval.every=100000", "checkpoint.every=100000", "run.name=host")
EMPTY_CALLS = 101


class TimedCalls:
    """The compiled functions as jobs/train.py calls them; notes begin, end and micro-steps of each call."""

    def __init__(self, window: Any, strategy: tf.distribute.Strategy, xla: bool):
        self._step, self._micro_steps = Step(window, strategy, xla), window.micro_steps
        self.calls: list[tuple[float, float, int]] = []

    def trace(self, batches: Any) -> Any:
        return self._step.trace(batches)

    def accumulate(self, batches: Any, count: tf.Tensor) -> None:
        self._batches = batches
        return self._timed(int(count), self._step.accumulate, batches, count)

    def commit(self) -> dict[str, tf.Tensor]:
        return self._timed(0, self._step.commit)

    def updates(self, batches: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._timed(int(count) * self._micro_steps, self._step.updates, batches, count)

    def _timed(self, micro_steps: int, function: Any, *arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        tf.test.experimental.sync_devices()
        self.calls.append((started, time.perf_counter(), micro_steps))
        return result

    def empty_call(self) -> float:
        """Seconds of a call that has nothing to do."""
        seconds = []
        for _ in range(EMPTY_CALLS):
            started = time.perf_counter()
            self._step.accumulate(self._batches, 0)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)


def timed_run(config: Config) -> TimedCalls:
    made: list[TimedCalls] = []

    def make(*arguments: Any) -> TimedCalls:
        made.append(TimedCalls(*arguments))
        return made[-1]

    with mock.patch.object(train, "Step", make), contextlib.redirect_stdout(io.StringIO()):
        train.run(config)
    return made[0]


def show(name: str, overrides: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        timed = timed_run(compose(*overrides, *NOTHING_ELSE, f"run.dir={scratch}"))
    calls = timed.calls[len(timed.calls) // 2 :]
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
    for case, overrides in CASES.items():
        show(case, overrides)
