"""Progress of long work on the terminal: a bar, or plain lines if stdout is not a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

from accumtrain.console import format_bytes, format_seconds, format_speed, print_line, stdout

LONG_WINDOW = 16  # windows of at least this many micro-steps show how many are done
TEXT_WIDTH = 101  # columns reserved for the text beside the bar
FORWARD_SHARE = 1 / 3  # of an update's time that an evaluation of as many examples takes, until one is timed


@contextmanager
def counting(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar of how many of `total` are done, on a terminal only. Yield a function that counts some more."""
    console = stdout()
    columns = TextColumn(title), BarColumn(), TextColumn("{task.completed:,.0f}/{task.total:,.0f}")
    with RichProgress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.advance(task, more)


class Progress:
    """The progress of a run: on a terminal a bar of all its updates, else one line per `log_every` updates.

    Args:
        first: number of updates done before this process began.
        total: number of updates of the whole run.
        epochs_at: returns the epochs that are made by an update, which need not end with one.
        log_every: updates between two plain lines; the first and the last update always have one.
        evaluation_work: returns the examples that are still evaluated once update `done` is made, as a number of
            updates with as many examples.
    """

    def __init__(
        self,
        *,
        first: int,
        total: int,
        epochs_at: Callable[[int], Fraction | float],
        log_every: int = 10,
        evaluation_work: Callable[[int], float] = lambda done: 0.0,
    ):
        self._first, self._total, self._epochs_at, self._log_every = first, total, epochs_at, log_every
        # a last update that reaches past an end does not count as another epoch
        self._epochs = max(1, math.ceil(epochs_at(total - 1)))
        self._step, self._micro = first, 0.0
        self._parts = {"state": "compiling"}
        self._expendable: list[str] = []  # parts that a narrow terminal leaves out, in this order
        self._timed_from: tuple[int, float] | None = None
        self._evaluation_work = evaluation_work
        self._evaluated, self._evaluation_seconds = 0.0, 0.0  # so far, as work; their time since _timed_from
        self._console = stdout()
        self._per_second = "ex/s" if self._console.is_terminal else "examples/s"
        self._bar_width = min(40, max(6, self._console.width - TEXT_WIDTH))
        self._bar = RichProgress(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=self._bar_width),
            TextColumn("{task.fields[update]}"),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", epoch="", update="", text="")
        self._show()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._step >= self._total and self._parts.pop("time left", ""):
            self._show()
        self._bar.stop()

    def update(
        self,
        step: int,
        *,
        means: Mapping[str, float | None],
        examples_per_second: float | None,
        peak_bytes: int | None = None,
    ) -> None:
        """Show that update `step` is done.

        Args:
            means: loss and metrics by name, the loss first. Here and below, values not known yet are None.
        """
        self._step, self._micro = step, 0.0
        if self._timed_from is None:
            self._timed_from = (step, time.monotonic())  # after the first update, which includes compilation
        parts = {
            **{name: "" if value is None else f"{name} {value:.4f}" for name, value in means.items()},
            "speed": "" if examples_per_second is None else f"{format_speed(examples_per_second)} {self._per_second}",
            "memory": "" if peak_bytes is None else f"peak {format_bytes(peak_bytes)}",
            "time left": self._time_left(),
        }
        self._parts = {name: text for name, text in parts.items() if text}
        self._expendable = ["speed", *list(means)[:0:-1], "time left"]
        self._show()
        if self._bar.disable and (step % self._log_every == 0 or step in (self._first + 1, self._total)):
            self.event(f"{self._epoch()}  update {step}/{self._total}  {'  '.join(self._parts.values())}")

    def window(self, done: int, steps: int) -> None:
        """Show that `done` of the `steps` micro-steps of a window are done. Only a long window shows the number."""
        self._micro = done / steps
        self._show(f" +{done}/{steps}" if steps >= LONG_WINDOW and done < steps else "")

    def evaluated(self, work: float, seconds: float) -> None:
        """Note that an evaluation has ended, whose examples are those of `work` updates."""
        self._evaluated += work
        self._evaluation_seconds += seconds

    def evaluating(self, done: int, batches: int) -> None:
        """Show that `done` of the `batches` of an evaluation are done."""
        self._show(f" evaluating {done}/{batches}" if done < batches else "")

    def event(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.refresh()  # because printing draws the bar again as the last refresh drew it
        print_line(self._bar.console, text)

    def _show(self, suffix: str = "") -> None:
        epoch, update = self._epoch(), f"update {self._step}/{self._total}{suffix}"
        beside = len(epoch) + self._bar_width + len(update) + 3  # with a space between each two
        self._bar.update(
            self._task,
            completed=self._step + self._micro,
            total=self._total,
            epoch=epoch,
            update=update,
            text=self._text(self._console.width - beside),
        )

    def _text(self, width: int) -> str:
        """Return the values of the last update that fit into `width` columns, with loss and memory in any case."""
        parts = dict(self._parts)
        for name in self._expendable:
            if len(" ".join(parts.values())) > width:
                parts.pop(name, None)
        return " ".join(parts.values())

    def _epoch_index(self) -> int:
        """Return the epoch of the last update, from 0. An update that completes an epoch belongs to it."""
        return min(math.floor(self._epochs_at(max(self._step - 1, 0))), self._epochs - 1)

    def _epoch(self) -> str:
        return f"epoch {self._epoch_index() + 1}/{self._epochs}"

    def _time_left(self) -> str:
        """Return the time until the run ends, its evaluations included."""
        if self._timed_from is None or self._step <= self._timed_from[0]:
            return ""
        step, since = self._timed_from
        per_update = (time.monotonic() - since - self._evaluation_seconds) / (self._step - step)
        per_work = self._evaluation_seconds / self._evaluated if self._evaluated else FORWARD_SHARE * per_update
        seconds = per_update * (self._total - self._step) + per_work * self._evaluation_work(self._step)
        return f"{format_seconds(seconds)} left" if seconds > 0 else ""
