"""A console that fails does not end what runs: a pipe without a reader, a full disk, closed descriptors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accumtrain.cli.streams import KeptStream
from tests.programs import with_path

PROGRAM = """
import sys
from types import SimpleNamespace
from pathlib import Path
from accumtrain import console, progress
from accumtrain.process import environment
from accumtrain.cli.main import main

def train(config):
    with progress.Progress(first=0, total=300, epochs_at=lambda step: step / 300, log_every=1) as bar:
        for step in range(1, 301):
            bar.update(step, means={"loss": 1.0}, examples_per_second=None)
            console.warn("x" * 500)
    Path("own").write_text("what a job writes")  # with a closed descriptor 1 this would be 1
    return {"step": 300, "status": "completed"}

environment.prepare = lambda device, **_: None
sys.modules["accumtrain.train.train"] = SimpleNamespace(train=train)
main()
"""


@pytest.fixture
def shell(tmp_path):
    """Run a shell command in an empty folder, in which `$RUN` trains. Return what is left: code, stdout, stderr."""

    def run(line, **environment):
        return subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=with_path(RUN=f"{sys.executable} {tmp_path / 'program.py'}", **environment),
            preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
            capture_output=True,
            text=True,
            check=False,
        )

    (tmp_path / "program.py").write_text(PROGRAM)
    return run


def trained(folder: Path) -> bool:
    own = folder / "own"
    return own.read_text() == "what a job writes" and (folder / "runs" / "one" / "summary.json").exists()


@pytest.mark.parametrize(
    ("redirection", "told"),
    [
        ("2>error | head -1 >/dev/null", "error"),
        ("2>error | true", "error"),
        (">/dev/full 2>error", "error"),
        (">out 2>/dev/full", "out"),
        (">/dev/full 2>/dev/full", None),
        (">&- 2>error", None),
        (">out 2>&-", None),
        ("<&- >&- 2>&-", None),
        ("2>&1 | head -1 >/dev/null", None),
    ],
)
def test_a_run_goes_on_without_its_console(redirection, told, shell, tmp_path):
    ended = shell(f"$RUN run.name=one {redirection}; exit ${{PIPESTATUS[0]}}", FORCE_COLOR="")
    assert ended.returncode == 0, ended
    assert trained(tmp_path)
    if told:
        assert (tmp_path / told).read_text().count("can't be written any more") == 1


def test_the_live_display_of_a_terminal_may_fail(shell, tmp_path):
    ended = shell("$RUN run.name=one 2>error >/dev/full", FORCE_COLOR="1", TERM="xterm")
    assert ended.returncode == 0, ended
    assert trained(tmp_path)
    assert "Traceback" not in (tmp_path / "error").read_text()


@pytest.mark.parametrize("question", ["--help", "--version", "--cfg job", "--info defaults"])
def test_an_answer_whose_reader_has_left_is_quiet(question, shell):
    ended = shell(f"$RUN {question} | true; exit ${{PIPESTATUS[0]}}")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_pipe_that_does_not_wait_is_waited_for():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as pipe, os.fdopen(reading, "rb") as reader, ThreadPoolExecutor() as beside:
        kept = KeptStream(pipe, "stdout")

        def read():
            while not os.get_blocking(writing):  # the writer has met a full pipe
                pass
            return reader.read()

        text = beside.submit(read)
        for _ in range(20_000):
            kept.write("a line\n")
            kept.flush()
        pipe.close()
        assert text.result() == b"a line\n" * 20_000


def test_characters_that_the_terminal_does_not_know(shell, tmp_path):
    ended = shell("$RUN run.name=one run.dir=\"'ü'\"; $RUN job=report run.dir=\"'ü'\"", PYTHONIOENCODING="ascii")
    assert "\\xfc" in ended.stdout
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.launchers
def test_a_sweep_whose_console_is_gone_goes_on(shell, tmp_path):
    sweep = "$RUN -m run.name=one,two hydra/launcher=joblib hydra.launcher.n_jobs=2"
    ended = shell(f"{sweep} 2>error | true; exit ${{PIPESTATUS[0]}}")
    assert ended.returncode == 0, (tmp_path / "error").read_text()
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2
