"""The output that a person sees, on a terminal and in a pipe."""

from __future__ import annotations

import math
import re

import pytest

from accumtrain.console import (
    banner,
    fail,
    format_bytes,
    format_count,
    format_measure,
    format_seconds,
    format_speed,
    format_things,
    say,
    say_at_once,
    table,
    warn,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0000"), (0.001, "0.0010"), (12.34567, "12.3457"), (-1.23456e-6, "-1.235e-06"), (math.nan, "nan")],
)
def test_a_small_measure_keeps_its_digits(value, text):
    assert format_measure(value) == text


def test_messages_go_where_they_belong(capsys):
    long = "[red]plain[/red] " + "word " * 40
    say(long)
    warn("odd")
    fail(long)
    assert capsys.readouterr() == (f"{long}\n", f"warning: odd\nerror: {long}\n")


def test_banner_in_a_pipe_is_plain(capsys):
    banner("revnet38 on digits", [("batch", "64 = 16 x 4"), ("parameters", "464,890")])
    assert capsys.readouterr().out == "revnet38 on digits\n  batch       64 = 16 x 4\n  parameters  464,890\n"


def test_table_in_a_pipe_puts_numbers_to_the_right(capsys):
    table("runs", ["name", "accuracy", "seconds"], [["a", "0.5", "1:01"], ["long", "-", "61.0 s"]])
    shown = "runs\nname  accuracy  seconds\na          0.5     1:01\nlong         -   61.0 s\n"
    assert capsys.readouterr().out == shown


def test_table_without_rows(capsys):
    table("runs", ["name", "accuracy"], [])
    assert capsys.readouterr().out.startswith("runs\nname")


def test_on_a_terminal_there_are_frames(capsys, terminal):
    banner("title", [("batch", "64")])
    table("runs", ["name"], [["a"]])
    out = capsys.readouterr().out
    assert {"╭", "─"} <= set(out)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(0), "0 bytes"),
        (format_bytes(1023), "1023 bytes"),
        (format_bytes(1536), "1.5 KB"),
        (format_bytes(490 * 2**20), "490.0 MB"),
        (format_bytes(3 * 2**40), "3.0 TB"),
        (format_count(464_890), "464,890"),
        (format_count(45_431_832), "45.43 M"),
        (format_count(2.5e9), "2.50 G"),
        (format_things(1, "image"), "1 image"),
        (format_things(1200, "image"), "1,200 images"),
        (format_things(1, "image is", "images are"), "1 image is"),
        (format_things(2, "image is", "images are"), "2 images are"),
        (format_things("0.5", "epoch"), "0.5 epochs"),
        (format_seconds(7.94), "7.9 s"),
        (format_speed(1138.6), "1,139"),
        (format_speed(0.0571), "0.057"),
        (format_seconds(59.96), "1:00"),
        (format_seconds(187), "3:07"),
        (format_seconds(3725), "1:02:05"),
    ],
)
def test_formats(shown, expected):
    assert shown == expected


NAMES = [
    f"lenet5-digits-accum.steps-{4 * n}-batch_size-{256 * n}-optim-adafactor-optim.lr-0.0{n}" for n in range(1, 17)
]


def plain(text: str) -> str:
    """Text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# a character that a terminal obeys or that changes how others are read, and how it is shown
OBEYED = [
    *((chr(code), f"\\x{code:02x}") for code in (0, 7, 8, 11, 12, 27, 31, 127, 0x80, 0x85, 0x9B, 0x9D, 0xAD)),
    ("\t", "\\t"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    *((chr(code), f"\\u{code:04x}") for code in (0x61C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029)),
    *((chr(code), f"\\u{code:04x}") for code in (*range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A))),
    *((chr(code), f"\\u{code:04x}") for code in (0xFEFF, 0xFFF9, 0xDCE9)),
    ("\U000e0041", "\\U000e0041"),
    ("\x1b[2J\x1b[31m", "\\x1b[2J\\x1b[31m"),
    ("\x1b]0;title\a", "\\x1b]0;title\\x07"),
    ("\x1b]8;;http://a\x1b\\", "\\x1b]8;;http://a\\x1b\\"),
    ("\x1bP+q\x1b\\", "\\x1bP+q\\x1b\\"),
]


@pytest.mark.parametrize("screen", ["pipe", "terminal"])
@pytest.mark.parametrize(("obeyed", "shown"), OBEYED)
def test_no_name_reaches_a_terminal_unescaped(capsys, request, obeyed, shown, screen):
    if screen == "terminal":
        request.getfixturevalue("terminal")
    name = f"a{obeyed}b"
    banner(name, [(name, name)])
    table(name, [name, "c"], [[name, "1"]])
    for write in (say, say_at_once, warn, fail):
        write(name)
    written = capsys.readouterr()
    texts = plain(written.out), written.err if screen == "pipe" else plain(written.err)
    assert [text.count(f"a{shown}b") for text in texts] == [6 + 1 + (screen == "terminal"), 2]
    assert all(character.isprintable() or character == "\n" for text in texts for character in text)


@pytest.mark.parametrize("name", ["café", "日本", "क्\u200dष", "👩\u200d🔬", "a\u00a0b", "e\u0301"])
def test_words_of_all_languages_are_shown_as_they_are(capsys, name):
    say(name)
    assert capsys.readouterr().out == f"{name}\n"


@pytest.mark.parametrize("columns", [0, 1, 2, 7, 15, 24])
def test_a_terminal_that_is_too_narrow(capsys, terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [("batch", "64 = micro-batch 16 x 4 steps x 1 replica"), ("a name that is long", "464,890")]
    banner("revnet38 on digits", rows)
    table("runs", ("name", "accuracy"), rows)
    say("of the memory")
    shown = "".join(plain(capsys.readouterr().out).split())
    assert columns == 0 or "ofthememory" in shown
    assert columns < 24 or "464,890" in shown


def test_lines_end_between_words(capsys, terminal):
    """A number stays with its unit; a word longer than the line, such as a path to copy, is left to the terminal."""
    path = "/data/" + "deep/" * 20
    say(f"of the memory at the peak there are in all 1024.5 MB that belong to some 1024.5 MB {path} is where")
    first = "of the memory at the peak there are in all 1024.5 MB that belong to some"
    assert capsys.readouterr().out.splitlines() == [first, "1024.5 MB", path, "is where"]


def test_a_mistake_is_wrapped_behind_its_mark(capsys, terminal):
    fail("word " * 30)
    lines = plain(capsys.readouterr().err).splitlines()
    assert lines[0] == "error: " + " ".join(["word"] * 14)
    assert all(len(line) <= 80 for line in lines)


def test_the_banner_breaks_no_word(capsys, terminal):
    banner("title", [("run", "runs/" + "-".join(["photos"] * 14)), ("state", "weights 1.8 MB, " * 6)])
    lines = plain(capsys.readouterr().out).splitlines()
    assert all(len(line) <= 80 for line in lines)
    words = [word for line in lines for word in line.strip("│╭╮╰╯─ ").split()]
    assert words.count("weights") == 6
    assert next(line for line in lines if "photos-" in line).rstrip("│ ").endswith("photos-")


COLUMNS = [
    "run",
    "status",
    "updates",
    "test accuracy",
    "test loss",
    "examples/s while training",
    "activations",
    "resident",
]


def shown_at(width, columns, rows, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    table("runs", columns, rows)
    return plain(capsys.readouterr().out)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_a_table_cuts_no_word(width, capsys, terminal, monkeypatch):
    rows = [(name, "completed", "180", "0.9876", "0.1234", "1,234", "123.4 MB", "812.0 MB") for name in NAMES]
    out = shown_at(width, COLUMNS, rows, capsys, monkeypatch)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    assert {word for cell in COLUMNS for word in cell.split()} <= set(out.replace(",", " ").split())
    assert {"completed", "MB"} >= {word for word in out.split() if word[:4] == "comp" or word[:1] == "M"}
    assert all(part in out for name in NAMES for part in re.split(r"(?<=-)(?=[a-z])", name))


@pytest.mark.parametrize("width", range(40, 100))
def test_lines_between_columns_count_too(width, capsys, terminal, monkeypatch):
    """The cells alone may be just as wide as the terminal."""
    columns = [
        "run",
        "best accuracy",
        "best loss",
        "test accuracy",
        "test loss",
        "examples/s while training",
        "seconds",
    ]
    row = ("a", "0.8389", "1.1698", "0.8389", "1.1698", "1,663", "32.1 s")
    out = shown_at(width, columns, [row], capsys, monkeypatch)
    assert {word for column in columns for word in column.split()} <= set(out.replace(",", " ").split())
    assert max(map(len, out.splitlines())) <= width


def test_a_narrow_table_is_one_table(capsys, terminal, monkeypatch):
    """It says which columns it leaves out, and breaks headers and names between words."""
    rows = [(name, "completed", *["123456789"] * 6) for name in NAMES[:2]]
    out = shown_at(80, COLUMNS, rows, capsys, monkeypatch)
    told = out.partition("a wider terminal also shows: ")[2].replace("\n", " ").strip()
    left_out = told.split(", ")
    assert list(COLUMNS[-len(left_out) :]) == left_out
    assert sum("completed" in line for line in out.splitlines()) == len(rows)


def test_prose_wraps_between_words(capsys, terminal, monkeypatch):
    out = shown_at(60, ["check", "result"], [("one word after the other " * 4, "holds")], capsys, monkeypatch)
    assert "#" not in out
    assert {"one", "word", "after", "the", "other", "holds"} <= set(out.split())
