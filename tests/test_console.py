"""What a person sees, on a terminal and in a pipe."""

from __future__ import annotations

import re

import pytest

from accumtrain import console
from accumtrain.console import Progress, banner, fail, format_bytes, format_count, format_seconds, say, table, warn


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_messages_go_where_they_belong(capsys):
    long = "[red]plain[/red] " + "x" * 200
    say(long)
    warn("odd")
    fail(long)
    assert capsys.readouterr() == (f"{long}\n", f"warning: odd\nerror: {long}\n")


def test_banner_in_a_pipe_is_plain(capsys):
    banner("revnet38 on digits", [("batch", "64 = 16 x 4"), ("parameters", "464,890")])
    assert capsys.readouterr().out == "revnet38 on digits\n  batch       64 = 16 x 4\n  parameters  464,890\n"


def test_table_in_a_pipe_puts_numbers_to_the_right(capsys):
    table("runs", ["name", "accuracy", "seconds"], [["a", "0.5", "1:01"], ["long", "-", "61.0 s"]])
    assert (
        capsys.readouterr().out == "runs\nname  accuracy  seconds\na          0.5     1:01\nlong         -   61.0 s\n"
    )


def test_table_without_rows(capsys):
    table("runs", ["name", "accuracy"], [])
    assert capsys.readouterr().out.startswith("runs\nname")


def test_on_a_terminal_there_are_frames(capsys, terminal):
    banner("title", [("batch", "64")])
    table("runs", ["name"], [["a"]])
    out = capsys.readouterr().out
    assert "╭" in out
    assert "─" in out


def test_progress_in_a_pipe_logs_first_last_and_every_tenth(capsys):
    with Progress(first=3, total=25, updates_per_epoch=12.5) as progress:
        for step in range(4, 26):
            progress.window(1, 2)
            progress.update(step, loss=1 / step, accuracy=None, examples_per_second=512.4, peak_bytes=step * 2**20)
            if step == 13:
                progress.event("evaluated [here]")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "epoch 1/2  update 4/25  loss 0.2500  512 examples/s  peak 4.0 MB"
    assert lines[2] == "evaluated [here]"
    assert [line.partition("update ")[2].split()[0] for line in lines if "update" in line] == [
        "4/25",
        "10/25",
        "20/25",
        "25/25",
    ]
    assert lines[-1] == "epoch 2/2  update 25/25  loss 0.0400  512 examples/s  peak 25.0 MB"


@pytest.mark.parametrize(
    ("step", "epoch"),
    [(0, "1/3"), (1, "1/3"), (22, "1/3"), (23, "1/3"), (24, "2/3"), (45, "2/3"), (46, "3/3"), (50, "3/3")],
)
def test_epoch_of_an_update(step, epoch):
    """Of 22.5 updates: update 23 begins in the first epoch, as does the example it begins with."""
    progress = Progress(first=step, total=50, updates_per_epoch=22.5)
    assert progress._epoch() == f"epoch {epoch}"


def test_time_left_is_that_of_the_remaining_updates(monkeypatch, capsys):
    now = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    with Progress(first=0, total=32, updates_per_epoch=8, log_every=1) as progress:
        for step in (1, 2, 3):
            progress.update(step, loss=None, accuracy=None, examples_per_second=None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "epoch 1/4  update 1/32  ", "the first update compiles and is not counted"
    assert lines[2].endswith("58.0 s left"), "2 s for each of 29"


@pytest.mark.parametrize(
    ("method", "done", "of", "shown"),
    [("window", 3, 64, "1/4 +3/64 "), ("window", 3, 4, "1/4 loss"), ("evaluating", 1, 9, "1/4 evaluating 1/9 ")],
)
def test_progress_on_a_terminal(method, done, of, shown, capsys, terminal):
    with Progress(first=0, total=4, updates_per_epoch=2) as progress:
        progress.event("evaluated")
        progress.update(1, loss=0.5, accuracy=0.25, examples_per_second=2000)
        getattr(progress, method)(done, of)
    out = capsys.readouterr().out
    assert shown in out
    assert "epoch 1/2" in out
    assert "2,000 ex/s" in out
    assert "evaluated\n" in out


@pytest.mark.parametrize("columns", [60, 80, 90, 120])
def test_the_bar_stays_on_its_line(columns, capsys, terminal, monkeypatch):
    """Where a terminal is narrow, the memory and the loss are what it still shows."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress(first=0, total=9999, updates_per_epoch=500) as progress:
        for step in (1000, 1002):
            progress.update(step, loss=0.5, accuracy=0.25, examples_per_second=2000, peak_bytes=389 * 2**20)
        progress.window(12, 64)
    lines = [
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in capsys.readouterr().out.replace("\r", "\n").splitlines()
    ]
    (shown,) = {line.rstrip() for line in lines if "+12/64" in line}
    assert len(shown) <= columns
    assert "…" not in shown
    assert "1002/9999 +12/64 loss 0.5000" in shown
    assert "peak 389.0 MB" in shown
    assert ("left" in shown, "accuracy" in shown, "ex/s" in shown) == {
        60: (False, False, False),
        80: (True, False, False),
        90: (True, True, False),
        120: (True, True, True),
    }[columns]


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
        (format_seconds(7.94), "7.9 s"),
        (format_seconds(59.96), "1:00"),
        (format_seconds(187), "3:07"),
        (format_seconds(3725), "1:02:05"),
    ],
)
def test_formats(shown, expected):
    assert shown == expected
