"""Output on the terminal: banner, messages, tables, words for numbers. Plain lines if stdout is not a terminal.

Names of classes, files and runs come from others, and a terminal obeys what it is sent. So every text passes `visible`.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

PROSE = 36  # characters from which on a cell is prose, which may take several lines
# of a run's name, whose keys and numbers stay together, or of a path
BEFORE_A_WORD = re.compile(r"(?<=[-/])(?=[A-Za-z_])")
NO_BREAK = "\N{NO-BREAK SPACE}"
BESIDE, NARROW = 3, 2  # characters of a column beside its text, and of one of a table that is too wide
BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:bytes|KB|MB|GB|TB|s|x)\b)")  # of a number
# categories of Unicode: controls such as ESC and line breaks, formats such as changes of direction, surrogates
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # formats that words of some languages need

_silent: ContextVar[bool] = ContextVar("silent", default=False)


def silence() -> None:
    """Hides all further output of this process except warnings and errors. Of several workers only the chief prints."""
    _silent.set(True)


def stdout() -> Console:
    """Where all but warnings and errors is printed."""
    return Console(highlight=False, quiet=_silent.get())


def _err() -> Console:
    return Console(stderr=True, highlight=False)


def visible(text: str) -> str:
    r"""A line as it may be shown: what a terminal would obey instead of showing stands as an escape, such as \x1b."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in UNSEEN and each not in JOINERS else each
        for each in text
    )


def visible_lines(text: str) -> str:
    """Text of several lines as it may be shown."""
    return "\n".join(map(visible, text.split("\n")))


def banner(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints a framed list of (name, value) pairs."""
    console, title = stdout(), visible(title)
    rows = [(visible(name), visible(value)) for name, value in rows]
    if not console.is_terminal:
        width = max((len(name) for name, _ in rows), default=0)
        lines = [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    named = max((cell_len(name) for name, _ in rows), default=0)
    widest = max(1, console.width - 6 - named)  # beside frame, margins and the space between
    for name, value in rows:
        grid.add_row(Text(name), Text(_in_lines(value, widest, broken)))
    console.print(Panel(grid, title=Text(title, style="bold"), title_align="left", expand=False))


def say(text: str) -> None:
    """Prints a line on stdout."""
    show_line(stdout(), text)


def show_line(console: Console, text: str, *marks: tuple[str, str]) -> None:
    """Prints a line. On a terminal it takes several where it is too long, each ending between words.

    A word longer than the terminal, such as a path to copy, is left to it.

    Args:
        marks: texts that come first, each with its style.
    """
    text, before = visible(text), "".join(mark for mark, _ in marks)
    if console.is_terminal:
        text = _in_lines(before + text, max(1, console.width))[len(before) :]
    console.print(Text.assemble(*marks, text), soft_wrap=True)


def _in_lines(text: str, width: int, break_word: Callable[[str, int], str] = lambda word, width: word) -> str:
    """Text in lines of at most `width` characters, with the words that are longer as `break_word` has them."""
    wrap = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    held = BEFORE_A_UNIT.sub(NO_BREAK, text)
    lines = "\n".join(wrap(line) for line in held.split("\n")).replace(NO_BREAK, " ").split("\n")
    return "\n".join(line if cell_len(line) <= width else break_word(line, width) for line in lines)


def say_at_once(text: str) -> None:
    """Prints a line about what takes a while, if stdout is a terminal."""
    if (console := stdout()).is_terminal:
        console.print(Text(visible(text), style="dim"))


def warn(text: str) -> None:
    """Prints a warning on stderr: something works, but not as the user may expect."""
    show_line(_err(), text, ("warning: ", "yellow"))


def fail(text: str) -> None:
    """Prints on stderr why the command ends."""
    show_line(_err(), text, ("error: ", "bold red"))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table with a header row. All cells are text; columns of numbers are right-aligned.

    On a terminal too narrow for it the columns stand closer. Where this is not enough they stand in several tables one
    below the other, whose rows are numbered, so that no word is cut. A name longer than a line takes several.
    """
    console, title = stdout(), visible(title)
    columns, rows = [visible(name) for name in columns], [[visible(cell) for cell in row] for row in rows]
    numeric = [all(_is_number(row[place]) for row in rows) for place in range(len(columns))]
    if not console.is_terminal:
        console.print(Text(_plain_table(title, columns, rows, numeric)), soft_wrap=True)
        return
    longest = max(1, console.width - 2 * BESIDE - len(f"#{len(rows)}"))  # of a name that has a line for itself
    rows = [[broken(cell, longest) for cell in row] for row in rows]
    room = console.width - 1  # behind the last column is a line, too
    for beside in (BESIDE, NARROW):
        widths = [beside + _width(column) for column in zip(columns, *rows, strict=True)]
        if sum(widths) <= room:
            break
    else:
        columns, numeric = ("#", *columns), [True, *numeric]
        rows = [(str(number), *row) for number, row in enumerate(rows, start=1)]
        widths = [beside + _width(("#", str(len(rows)))), *widths]
    console.print(Text(title, style="italic"))
    for block in _blocks(widths, room):
        shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, beside - NARROW))
        for place in block:
            shown.add_column(
                Text(columns[place]),
                justify="right" if numeric[place] else "left",
                min_width=min(widths[place] - beside, longest),
                overflow="fold",
            )
        for row in rows:
            shown.add_row(*(Text(row[place]) for place in block))
        console.print(shown)


def broken(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken before its words; a longer word is left to itself."""
    lines = [""]
    for word in BEFORE_A_WORD.split(name):
        if lines[-1] and cell_len(lines[-1]) + cell_len(word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _width(cells: Sequence[str]) -> int:
    """Characters that a column's text takes at least. Only prose may wrap."""
    lines = [line for cell in cells for line in cell.split("\n")]
    return max(min(cell_len(line), max(PROSE, *map(cell_len, line.split() or [""]))) for line in lines)


def _blocks(widths: Sequence[int], width: int) -> list[list[int]]:
    """The places of the columns of each table, each as wide as fits, and the first column in all of them."""
    if not widths:
        return []
    blocks = [[0]]
    for place in range(1, len(widths)):
        if len(blocks[-1]) > 1 and sum(widths[each] for each in (*blocks[-1], place)) > width:
            blocks.append([0])
        blocks[-1].append(place)
    return blocks


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
