"""What the benchmarks share: configurations, processes that take turns, ratios by rounds, and one kind of table.

Nothing here imports TensorFlow, as a benchmark may have to settle the environment before that.
"""

from __future__ import annotations

import io
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import hydra
import psutil

import accumtrain
from accumtrain.cli.compose import plain_values, read_config
from accumtrain.cli.overrides import for_hydra
from accumtrain.config.keys import CONF_DIR
from accumtrain.config.schema import Config

Answer = TypeVar("Answer")
CLASSES = {32: 10, 224: 1000}  # by the image size of a comparison


def compose(*overrides: str) -> Config:
    """The configuration that `accumtrain *overrides` would run."""
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return read_config(plain_values(hydra.compose("config", for_hydra(overrides))), overrides)


def of_texts(model: str, precision: str, optimizer: str) -> Config:
    """The configuration of our side for texts, which the benchmark makes by itself; the data of the keys is unused."""
    return compose(*model.split(), f"optim={optimizer}", "data=synthetic", f"precision={precision}")


def of_case(model: str, precision: str, micro_batch: int, steps: int, image_size: int) -> Config:
    """The configuration of our side of a comparison with peers; `model` is one or more overrides."""
    return compose(
        *model.split(),
        "optim=adam",
        "data=synthetic",
        f"data.image_size={image_size}",
        f"data.num_classes={CLASSES[image_size]}",
        f"precision={precision}",
        f"batch_size={micro_batch * steps}",
        f"accum.steps={steps}",
    )


def call(folder: Path, *overrides: str) -> tuple[int, Path]:
    """Runs `accumtrain *overrides` in a process of its own; returns its exit code and the folder of the run."""
    command = [sys.executable, "-m", "accumtrain", *overrides, f"run.dir={folder}", "run.name=run"]
    return subprocess.run(command, capture_output=True, check=False).returncode, folder / "run"


def run_quietly(*overrides: str) -> dict[str, Any]:
    """Run `accumtrain *overrides` in this process, and return the content of its file. What it prints is dropped."""
    config = compose(*overrides)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        result = accumtrain.run(config)
    assert result is not None
    return dict(result)


def in_turn(turns: Mapping[str, Callable[[], Answer]], rounds: int) -> dict[str, list[Answer]]:
    """What each side answers, round by round. Who begins changes, so that nobody always follows the same one."""
    names = list(turns)
    answers: dict[str, list[Answer]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            answers[name].append(turns[name]())
    return answers


def by_rounds(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours over theirs, each within its round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


class Taken(NamedTuple):
    """Seconds by the clock, and of the processor: those of all threads of this process, added."""

    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], Any]) -> Taken:
    started, cpu_started = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - started, time.process_time() - cpu_started)


class Worker:
    """A process that makes its first update at once, then one for every turn (peers/turns.py)."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        self._command = command
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            bufsize=1,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._said = self._process.stdin, self._process.stdout

    def turn(self) -> dict[str, Any]:
        """Has it make an update, and returns what it says of it."""
        self._asked.write("go\n")
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Waits for what it says next."""
        line = self._said.readline()
        if not line:
            self._stderr.seek(0)
            raise SystemExit(f"{shlex.join(self._command)} ended:\n{self._stderr.read()[-4000:]}")
        return json.loads(line)

    def cpu_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._asked.close()
        self._process.wait()
        self._stderr.close()


class Table:
    """A table in Markdown, of which each row is printed as soon as it is there, unless `printed` is false."""

    def __init__(self, *head: str, printed: bool = True):
        self.lines: list[str] = []
        self._printed = printed
        self.row(*head)
        self.row(*["---"] * len(head))

    def row(self, *cells: object) -> None:
        self.lines.append(f"| {' | '.join(map(str, cells))} |")
        if self._printed:
            print(self.lines[-1], flush=True)
