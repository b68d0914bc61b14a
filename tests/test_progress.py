"""The progress of a run, on a terminal and in a pipe."""

import re

import pytest

from accumtrain import progress
from accumtrain.progress import Progress


def test_progress_in_a_pipe_logs_first_last_and_every_tenth(capsys):
    with Progress(first=3, total=25, epochs_at=lambda step: step / 12.5) as bar:
        for step in range(4, 26):
            bar.window(1, 2)
            bar.update(step, means={"loss": 1 / step}, examples_per_second=512.4, peak_bytes=step * 2**20)
            if step == 13:
                bar.event("evaluated [here]")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "epoch 1/2  update 4/25  loss 0.2500  512 examples/s  peak 4.0 MB"
    assert lines[2] == "evaluated [here]"
    shown = [line.partition("update ")[2].split()[0] for line in lines if "update" in line]
    assert shown == ["4/25", "10/25", "20/25", "25/25"]
    assert lines[-1] == "epoch 2/2  update 25/25  loss 0.0400  512 examples/s  peak 25.0 MB"


@pytest.mark.parametrize(
    ("step", "epoch"),
    [(0, "1/3"), (1, "1/3"), (22, "1/3"), (23, "1/3"), (24, "2/3"), (45, "2/3"), (46, "3/3"), (50, "3/3")],
)
def test_epoch_of_an_update(step, epoch):
    """An epoch has 22.5 updates, so update 23 begins in the first one."""
    bar = Progress(first=step, total=50, epochs_at=lambda step: step / 22.5)
    assert bar._epoch() == f"epoch {epoch}"


def test_time_left_is_that_of_the_remaining_updates(monkeypatch, capsys):
    now = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with Progress(first=0, total=32, epochs_at=lambda step: step / 8, log_every=1) as bar:
        for step in (1, 2, 3):
            bar.update(step, means={"loss": None, "accuracy": None}, examples_per_second=None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "epoch 1/4  update 1/32  ", "the first update compiles and is not counted"
    assert lines[2].endswith("58.0 s left"), "2 s for each of 29"


def test_time_left_ends_with_the_last_evaluation(monkeypatch, capsys):
    """Before an evaluation is timed, each of its examples takes a third of what it takes in an update."""
    now = iter([100.0, 102.0, 110.0, 112.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    work = {1: 18.0, 2: 18.0, 3: 9.0, 4: 9.0}  # two evaluations of as many examples as 9 updates have
    with Progress(first=0, total=4, epochs_at=lambda step: step / 2, log_every=1, evaluation_work=work.get) as bar:
        for step in (1, 2, 3, 4):
            bar.update(step, means={"loss": 0.5}, examples_per_second=None)
            if step == 2:
                bar.evaluated(9.0, 6.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("0.5000  ")[2] for line in lines[1:]] == ["16.0 s left", "8.0 s left", "6.0 s left"]


def test_bar_and_count_are_those_of_the_run(capsys, terminal):
    with Progress(first=0, total=40, epochs_at=lambda step: step / 4) as bar:
        bar.update(10, means={"loss": 0.5}, examples_per_second=None)
        assert (bar._bar.tasks[0].completed, bar._bar.tasks[0].total) == (10, 40)
    assert "epoch 3/10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "done", "of", "shown"),
    [
        ("window", 3, 64, "update 1/4 +3/64 "),
        ("window", 3, 4, "update 1/4 loss"),
        ("evaluating", 1, 9, "update 1/4 evaluating 1/9 "),
    ],
)
def test_progress_on_a_terminal(method, done, of, shown, capsys, terminal):
    with Progress(first=0, total=4, epochs_at=lambda step: step / 2) as bar:
        bar.event("evaluated")
        bar.update(1, means={"loss": 0.5, "accuracy": 0.25}, examples_per_second=2000)
        getattr(bar, method)(done, of)
    out = capsys.readouterr().out
    assert all(part in out for part in (shown, "epoch 1/2", "accuracy 0.2500", "evaluated\n")), out


def test_below_a_line_the_bar_is_up_to_date(capsys, terminal):
    """Not as it was a quarter of a second before, when it was last drawn."""
    with Progress(first=0, total=40, epochs_at=lambda step: step / 4) as bar:
        bar.update(10, means={"loss": 0.5}, examples_per_second=None)
        bar.event("evaluated")
        below = capsys.readouterr().out.partition("evaluated\n")[2]
    assert "update 10/40" in below


@pytest.mark.parametrize("columns", [60, 80, 90, 120])
def test_the_bar_stays_on_its_line(columns, capsys, terminal, monkeypatch):
    """A narrow terminal still shows the memory and the loss."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress(first=0, total=9999, epochs_at=lambda step: step / 500) as bar:
        for step in (1000, 1002):
            bar.update(step, means={"loss": 0.5, "accuracy": 0.25}, examples_per_second=2000, peak_bytes=389 * 2**20)
        bar.window(12, 64)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out.replace("\r", "\n")).splitlines()
    (shown,) = {line.rstrip() for line in lines if "+12/64" in line}
    assert len(shown) <= columns
    assert "…" not in shown
    assert "1002/9999 +12/64 loss 0.5000" in shown
    assert "peak 389.0 MB" in shown
    assert ("left" in shown, "accuracy" in shown, "ex/s" in shown) == {
        60: (False, False, False),
        80: (True, False, False),
        90: (True, False, False),
        120: (True, True, True),
    }[columns]
