"""A signal stops a job in whatever phase it is, and the exit code says whether the same command goes on."""

import json
import os
import signal
from contextlib import contextmanager

import pytest

from accumtrain import dispatch
from accumtrain.process.signals import SIGNALS, DeferredSignals
from tests.begun import leave_checkpoint
from tests.programs import start_python

NAMES = [each.name for each in SIGNALS]
# exec runs a text as extensions in C do: a KeyboardInterrupt itself would then end the process by SIGINT, not by 75
SLOW = """
import time
print("importing", flush=True)
exec("time.sleep(60)")
"""


@pytest.fixture
def importing(tmp_path):
    """Start a command with a module that takes forever to import, and returns when it does."""
    processes = []

    def start(*arguments, module="tensorflow"):
        (tmp_path / f"{module}.py").write_text(SLOW)
        process = start_python("-m", "accumtrain", *arguments, cwd=tmp_path)  # where a module is found first
        processes.append(process)
        assert process.stdout.readline() == "importing\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("module", ["omegaconf", "tensorflow"])  # before and after the command is known
@pytest.mark.parametrize("name", NAMES)
def test_while_modules_are_imported(importing, tmp_path, name, module):
    process = importing("model=lenet5", "run.name=one", module=module)
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (75, "")
    assert out == f"stopped by {name} when there was nothing to save; run the same command again\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_job_that_cannot_be_continued(importing, name):
    process = importing("model=lenet5", "job=bench")
    process.send_signal(signal.Signals[name])
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "error: interrupted before there was anything to save\n")


@pytest.mark.parametrize(("job", "code"), [("train", 75), ("evaluate", 75), ("verify", 130)])
def test_while_the_job_does_what_can_be_done_again(command, fake_job, compose, job, code):
    leave_checkpoint(compose("run.name=one"))
    fake_job(lambda config: os.kill(os.getpid(), signal.SIGTERM), job)
    assert command(f"job={job}", "run.name=one").code == code


@pytest.mark.parametrize("written", [False, True], ids=["in the job", "while its result is written"])
def test_a_job_that_finishes_all_the_same(command, fake_job, monkeypatch, tmp_path, written):
    write = dispatch.write_json

    def job(config):
        if not written:
            with DeferredSignals():
                os.kill(os.getpid(), signal.SIGTERM)
        return {"step": 7}

    def signal_and_write(path, value):
        os.kill(os.getpid(), signal.SIGTERM)
        write(path, value)

    if written:
        monkeypatch.setattr(dispatch, "write_json", signal_and_write)
    fake_job(job)
    assert command("run.name=one").code == 0
    assert json.loads((tmp_path / "runs/one/summary.json").read_text()) == {"step": 7}


@pytest.mark.parametrize(("place", "code"), [("begin", 75), ("end", 0)])
def test_while_the_folder_of_the_job_is_made_or_left(command, fake_job, monkeypatch, place, code):
    open_folder = dispatch.open_folder

    @contextmanager
    def signalled(config):
        if place == "begin":
            os.kill(os.getpid(), signal.SIGTERM)
        with open_folder(config) as folder:
            yield folder
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(dispatch, "open_folder", signalled)
    fake_job(lambda config: {"step": 7})
    assert command("run.name=one").code == code
