"""Output on the terminal: banner, messages, tables, words for numbers. Plain lines if stdout is not a terminal.

Names of classes, files and runs come from others, and a terminal obeys what it is sent. So `escape_controls` sees each.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

PROSE_WIDTH = 36  # characters from which on a cell is prose, which may take several lines
NUMBER = re.compile(r"[~,-]*\d|-?$")  # the beginning of a cell that counts as one
NAME_WIDTH = 26  # characters of a line of a name, where a table is too wide
GAP = 2  # characters between two columns
# The words of a run's name, whose keys and numbers stay together, or of a path.
WORD_START = re.compile(r"(?<=[-/])(?=[A-Za-z_])")
HEADER_BREAK = re.compile(r" |(?<=[-._])")  # between the words of a header, and the parts of a key
SPACE_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:bytes|KB|MB|GB|TB|s|x)\b)")
NO_BREAK = "\N{NO-BREAK SPACE}"
# Categories of Unicode: controls such as ESC and line breaks, formats such as changes of direction, surrogates.
HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # formats that words of some languages need

_silent: ContextVar[bool] = ContextVar("silent", default=False)


def silence() -> None:
    """Hide all further output of this process except warnings and errors. Of several workers only the chief prints."""
    _silent.set(True)


@contextmanager
def silenced() -> Iterator[None]:
    """Hide all output of this context except warnings and errors."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def stdout() -> Console:
    """Return the console for all but warnings and errors."""
    return Console(highlight=False, quiet=_silent.get())


def escape_controls(text: str) -> str:
    r"""Return a line whose characters a terminal shows. What it would obey is an escape, such as \x1b."""
    if text.isprintable():
        return text
    hidden = {mark for mark in text if unicodedata.category(mark) in HIDDEN_CATEGORIES} - set(JOINERS)
    return "".join(mark.encode("unicode_escape").decode() if mark in hidden else mark for mark in text)


def escape_lines(text: str) -> str:
    """Return text of several lines, each without controls."""
    return "\n".join(map(escape_controls, text.split("\n")))


def banner(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a framed list of (name, value) pairs."""
    console, title = stdout(), escape_controls(title)
    rows = [(escape_controls(name), escape_controls(value)) for name, value in rows]
    if not console.is_terminal:
        width = max((len(name) for name, _ in rows), default=0)
        lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    name_width = max((cell_len(name) for name, _ in rows), default=0)
    room = max(1, console.width - 6 - name_width)  # beside frame, margins and the space between
    for name, value in rows:
        grid.add_row(Text(name), Text(_wrap_lines(value, room, break_name)))
    console.print(Panel(grid, title=Text(title, style="bold"), title_align="left", expand=False))


def say(text: str) -> None:
    """Print a line on stdout."""
    print_line(stdout(), text)


def print_line(console: Console, text: str, *marks: tuple[str, str]) -> None:
    """Print a line, after `marks`: texts with their styles. A terminal gets several, each ending between words.

    A word longer than the terminal, such as a path to copy, is left to it.
    """
    text, before = escape_controls(text), "".join(mark for mark, _ in marks)
    if console.is_terminal:
        text = _wrap_lines(before + text, max(1, console.width))[len(before) :]
    console.print(Text.assemble(*marks, text), soft_wrap=True)


def _wrap_lines(text: str, width: int, break_word: Callable[[str, int], str] = lambda word, width: word) -> str:
    """Return text in lines of at most `width` characters. `break_word` breaks a word that is longer."""
    wrap = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    held = SPACE_BEFORE_UNIT.sub(NO_BREAK, text)
    lines = "\n".join(wrap(line) for line in held.split("\n")).replace(NO_BREAK, " ").split("\n")
    return "\n".join(line if cell_len(line) <= width else break_word(line, width) for line in lines)


def say_at_once(text: str) -> None:
    """Print a line about what takes a while, if stdout is a terminal."""
    if (console := stdout()).is_terminal:
        console.print(Text(escape_controls(text), style="dim"))


def warn(text: str) -> None:
    """Print a warning on stderr: something works, but not as the user may expect."""
    print_line(Console(stderr=True, highlight=False), text, ("warning: ", "yellow"))


def fail(text: str) -> None:
    """Print on stderr the reason for which the command ends."""
    print_line(Console(stderr=True, highlight=False), text, ("error: ", "bold red"))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a header row. All cells are text; columns of numbers are right-aligned.

    On a terminal that is too narrow, headers take several lines, and so do names in the first column. Then columns that
    do not fit are left out, and named below the table. Rich's own folding would cut words and numbers in the middle.
    """
    console, title = stdout(), escape_controls(title)
    columns = [escape_controls(name) for name in columns]
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    numeric = [all(NUMBER.match(row[index]) for row in rows) for index in range(len(columns))]
    if not console.is_terminal:
        console.print(Text(_plain_table(title, columns, rows, numeric)), soft_wrap=True)
        return
    room = console.width - 1  # behind the last column is a line, too
    widths = _column_widths(columns, rows)
    if sum(widths) + GAP * len(widths) > room:
        headers = [HEADER_BREAK.sub("\n", name) for name in columns]
        rows = [[break_name(row[0], min(NAME_WIDTH, room - GAP)), *row[1:]] for row in rows]
        widths = _column_widths(headers, rows)
    else:
        headers = columns
    shown_columns = _fitting(widths, room)
    console.print(Text(title, style="italic"))
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    header_lines = max((headers[index].count("\n") for index in shown_columns), default=0)
    for index in shown_columns:
        shown.add_column(
            Text("\n" * (header_lines - headers[index].count("\n")) + headers[index]),  # at the bottom, rows at the top
            justify="right" if numeric[index] else "left",
            min_width=min(widths[index], max(1, room - GAP)),
            overflow="fold",
        )
    for row in rows:
        shown.add_row(*(Text(row[index]) for index in shown_columns))
    console.print(shown)
    if left_out := [name for index, name in enumerate(columns) if index not in shown_columns]:
        print_line(console, f"a wider terminal also shows: {', '.join(left_out)}")


def break_name(name: str, width: int) -> str:
    """Return a name in lines of at most `width` characters, broken before its words. A longer word has a line."""
    lines = [""]
    for word in WORD_START.split(name):
        if lines[-1] and cell_len(lines[-1]) + cell_len(word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _column_widths(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the characters that the text of each column takes at least. Only prose may wrap."""
    widths = []
    for column in zip(headers, *rows, strict=True):
        lines = [line for cell in column for line in cell.split("\n")]
        widths.append(
            max(min(cell_len(line), max(PROSE_WIDTH, *map(cell_len, line.split() or [""]))) for line in lines)
        )
    return widths


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that fit side by side: the first two in any case, then each that still does."""
    indices, taken = [], 0
    for index, width in enumerate(widths):
        if index < 2 or taken + width + GAP <= room:
            indices.append(index)
            taken += width + GAP
    return indices


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


def format_bytes(count: float) -> str:
    """Return a text such as "1.5 KB" for 1536. A unit is 1024 of the one before."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def format_count(count: float) -> str:
    """Return a text such as "464,890", or "45.43 M" for 45431832."""
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if abs(count) >= limit:
            return f"{count / limit:.2f} {unit}"
    return f"{count:,.0f}"


def format_things(count: int | str, one: str, many: str | None = None) -> str:
    """Return a text such as "1 image", "1,200 images", "1 image is left out" or "2 images are left out".

    Args:
        count: a text of a number is taken as it is.
        one: the words for one thing.
        many: those for more; None: an "s" follows.
    """
    shown = count if isinstance(count, str) else f"{count:,}"
    return f"{shown} {one if shown == '1' else many or f'{one}s'}"


def format_speed(per_second: float) -> str:
    """Return a number of things a second; below 10 with two digits."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def format_measure(value: float) -> str:
    """Return a loss or metric with 4 decimal places, or with 4 digits if it is smaller than 0.001."""
    return f"{value:.4g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"


def format_seconds(seconds: float) -> str:
    """Return a text such as "7.9 s", "3:07" for 187 or "1:02:05" for 3725."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
