"""Output on the terminal: banner, messages, tables and progress. Plain lines if stdout is not a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

_silent: ContextVar[bool] = ContextVar("silent", default=False)


def silence() -> None:
    """Hides all further output of this process except warnings and errors. Of several workers only the chief prints."""
    _silent.set(True)


def _out() -> Console:
    return Console(highlight=False, quiet=_silent.get())


def _err() -> Console:
    return Console(stderr=True, highlight=False)


def banner(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints a framed list of (name, value) pairs."""
    console = _out()
    if not console.is_terminal:
        width = max((len(name) for name, _ in rows), default=0)
        lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    console.print(Panel(grid, title=Text(title, style="bold"), title_align="left", expand=False))


def say(text: str) -> None:
    """Prints a line on stdout."""
    _out().print(Text(text), soft_wrap=True)


def warn(text: str) -> None:
    """Prints a warning on stderr: something works, but not as the user may expect."""
    _err().print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)


def fail(text: str) -> None:
    """Prints on stderr why the command ends."""
    _err().print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table with a header row. All cells are text; columns of numbers are right-aligned."""
    console = _out()
    numeric = [all(_is_number(row[place]) for row in rows) for place in range(len(columns))]
    if not console.is_terminal:
        console.print(Text(_plain_table(title, columns, rows, numeric)), soft_wrap=True)
        return
    shown = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    for name, right in zip(columns, numeric, strict=True):
        shown.add_column(Text(name), justify="right" if right else "left")
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)


def _plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (columns, *rows)
    ]
    return "\n".join([title, *lines])


def _is_number(text: str) -> bool:
    return text in ("", "-") or text.replace(",", "").lstrip("-")[:1].isdigit()


@contextmanager
def counting(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar of how many of `total` are done, on a terminal only. Yields a function that counts some more."""
    console = _out()
    columns = TextColumn(title), BarColumn(), TextColumn("{task.completed:,.0f}/{task.total:,.0f}")
    with RichProgress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda more: bar.advance(task, more)


LONG_WINDOW = 16  # windows of at least this many micro-steps show how many are done
TEXT_WIDTH = 94  # columns reserved for the text beside the bar
LEFT_OUT_FIRST = ("speed", "accuracy", "time left")  # what a narrow terminal leaves out, in this order


class Progress:
    """Shows the progress of a run: on a terminal one bar per epoch, else one line per `log_every` updates.

    Args:
        first: number of updates done before this process began.
        total: number of updates of the whole run.
        updates_per_epoch: may be a fraction, as an epoch need not end with an update.
        log_every: updates between two plain lines; the first and the last update always have one.
    """

    def __init__(self, *, first: int, total: int, updates_per_epoch: float, log_every: int = 10):
        self._first, self._total, self._per_epoch, self._log_every = first, total, updates_per_epoch, log_every
        self._step, self._micro = first, 0.0
        self._parts = {"state": "compiling"}
        self._timed_from: tuple[int, float] | None = None
        self._console = _out()
        self._per_second = "ex/s" if self._console.is_terminal else "examples/s"
        self._bar_width = min(40, max(6, self._console.width - TEXT_WIDTH))
        self._bar = RichProgress(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=self._bar_width),
            TextColumn("{task.fields[place]}"),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", epoch="", place="", text="")
        self._show()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(
        self,
        step: int,
        *,
        loss: float | None,
        accuracy: float | None,
        examples_per_second: float | None,
        peak_bytes: int | None = None,
    ) -> None:
        """Shows that update `step` is done. Values not known yet are None; `peak_bytes` is the tensor peak so far."""
        self._step, self._micro = step, 0.0
        if self._timed_from is None:
            self._timed_from = (step, time.monotonic())  # after the first update, which includes compilation
        parts = {
            "loss": "" if loss is None else f"loss {loss:.4f}",
            "accuracy": "" if accuracy is None else f"accuracy {accuracy:.4f}",
            "speed": "" if examples_per_second is None else f"{examples_per_second:,.0f} {self._per_second}",
            "memory": "" if peak_bytes is None else f"peak {format_bytes(peak_bytes)}",
            "time left": self._time_left(),
        }
        self._parts = {name: text for name, text in parts.items() if text}
        self._show()
        if self._bar.disable and (step % self._log_every == 0 or step in (self._first + 1, self._total)):
            self._print(f"{self._epoch()}  update {step}/{self._total}  {'  '.join(self._parts.values())}")

    def window(self, done: int, steps: int) -> None:
        """Shows that `done` of the `steps` micro-steps of the current window are done; long windows as +done/steps."""
        self._micro = done / steps
        self._show(f" +{done}/{steps}" if steps >= LONG_WINDOW and done < steps else "")

    def evaluating(self, done: int, batches: int) -> None:
        """Shows that `done` of the `batches` of an evaluation are done."""
        self._show(f" evaluating {done}/{batches}" if done < batches else "")

    def event(self, text: str) -> None:
        """Prints a line above the bar."""
        self._print(text)

    def _print(self, text: str) -> None:
        self._bar.console.print(Text(text), soft_wrap=True)

    def _show(self, suffix: str = "") -> None:
        begin, length = self._epoch_place()
        epoch, place = self._epoch(), f"{self._step}/{self._total}{suffix}"
        beside = len(epoch) + self._bar_width + len(place) + 3  # with a space between each two
        self._bar.update(
            self._task,
            completed=self._step + self._micro - begin,
            total=length,
            epoch=epoch,
            place=place,
            text=self._text(self._console.width - beside),
        )

    def _text(self, width: int) -> str:
        """The values of the last update that fit into `width` columns; loss and memory are always shown."""
        parts = dict(self._parts)
        for name in LEFT_OUT_FIRST:
            if len(" ".join(parts.values())) > width:
                parts.pop(name, None)
        return " ".join(parts.values())

    def _epoch_index(self) -> int:
        """The epoch of the last update, from 0. An update that completes an epoch belongs to that epoch."""
        return min(int(max(self._step - 1, 0) // self._per_epoch), self._epochs() - 1)

    def _epoch_place(self) -> tuple[float, float]:
        """Begin and length of the current epoch, in updates. The last epoch may be shorter than the others."""
        begin = self._epoch_index() * self._per_epoch
        return begin, max(min(begin + self._per_epoch, self._total) - begin, 1e-9)

    def _epoch(self) -> str:
        return f"epoch {self._epoch_index() + 1}/{self._epochs():.0f}"

    def _epochs(self) -> int:
        """Number of epochs. A last update that reaches past the end of an epoch does not count as another epoch."""
        return max(1, math.ceil((self._total - 1) / self._per_epoch))

    def _time_left(self) -> str:
        if self._timed_from is None or self._step <= self._timed_from[0] or self._step >= self._total:
            return ""
        step, since = self._timed_from
        seconds = (time.monotonic() - since) / (self._step - step) * (self._total - self._step)
        return f"{format_seconds(seconds)} left"


def format_bytes(count: float) -> str:
    """1536 -> "1.5 KB"; units of 1024."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def format_count(count: float) -> str:
    """464890 -> "464,890"; 45431832 -> "45.43 M"."""
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if abs(count) >= limit:
            return f"{count / limit:.2f} {unit}"
    return f"{count:,.0f}"


def format_seconds(seconds: float) -> str:
    """7.94 -> "7.9 s"; 187 -> "3:07"; 3725 -> "1:02:05"."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
