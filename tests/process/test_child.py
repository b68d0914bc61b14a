"""The protocol of child processes: what is asked, what is answered, and the ways they end."""

import json
import re
import signal
import subprocess
import sys

import psutil
import pytest

from accumtrain.errors import AccumtrainError, DataError
from accumtrain.process import child
from accumtrain.process.program import child_command
from tests.programs import start_python

TASKS = """
import os, time
from accumtrain.errors import DataError

def double(request, folder):
    print("not shown")
    return {"twice": 2 * request["number"], "folder": folder.name}

def put(value):
    os.environ["PUT"] = value

def show(request, folder):
    return {"put": os.environ.get("PUT")}

def data(request, folder):
    raise DataError("no data")

def bug(request, folder):
    return {}["nothing"]

def stop(request, folder):
    raise KeyboardInterrupt

def save(request, folder):
    from accumtrain.process.signals import DeferredSignals, JobSignals
    with JobSignals(), DeferredSignals() as interrupt:
        print("training", flush=True)
        while not interrupt.requested:
            time.sleep(0.01)
        print("saving", flush=True)
        time.sleep(1)
        print("saved", flush=True)
    os._exit(0)

def write(request, folder):
    print("writing", flush=True)
    while True:
        (folder / "doing").write_text("waiting")

def wait(request, folder):
    (folder / "doing").write_text("waiting")
    time.sleep(60)
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Ask for one of TASKS. The child is this program, and finds modules where this process does."""
    (tmp_path / "tasks_of_child.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "folder").mkdir()

    def asked(task, **request):
        request[child.TASK] = f"tasks_of_child:{task}"
        return child.run_child(child_command(), tmp_path / "folder", request, "starting")

    return asked


def test_an_answer(ask, capfd):
    assert ask("double", number=21) == child.ChildResult(0, {"twice": 42, "folder": "folder"}, "")
    assert capfd.readouterr() == ("", "")


def test_an_answer_is_that_of_its_request(ask, tmp_path):
    ask("double", number=21)
    assert ask("bug").answer == {}


def test_a_child_is_prepared_within_the_context_alone(ask):
    import tasks_of_child

    with child.prepared_by(tasks_of_child.put, "there"):
        assert ask("show").answer == {"put": "there"}
    assert ask("show").answer == {"put": None}


def test_an_error_is_raised_here(ask):
    ended = ask("data")
    assert ended == child.ChildResult(DataError.exit_code, {"message": "no data"}, "")
    with pytest.raises(DataError, match="no data"):
        child.raise_child_error(ended, "a task")


@pytest.mark.parametrize("error", AccumtrainError.__subclasses__())
def test_each_kind_of_error_comes_back_as_one_with_its_code(error):
    with pytest.raises(AccumtrainError) as raised:
        child.raise_child_error(child.ChildResult(error.exit_code, {"message": "why"}, ""), "a task")
    assert (raised.value.exit_code, str(raised.value)) == (error.exit_code, "why")


def test_an_error_of_the_base_class_keeps_its_message():
    with pytest.raises(AccumtrainError, match="why"):
        child.raise_child_error(child.ChildResult(AccumtrainError.exit_code, {"message": "why"}, ""), "a task")


def test_a_bug_is_told_with_the_last_words(ask):
    ended = ask("bug")
    assert ended.code == 1
    with pytest.raises(RuntimeError, match=r"(?s)a task ended with code 1:.*KeyError: 'nothing'"):
        child.raise_child_error(ended, "a task")


def test_a_child_that_is_interrupted_ends_by_the_signal(ask):
    assert ask("stop") == child.ChildResult(-2, {}, "")


def test_a_long_task_says_what_it_is_doing_and_ends_with_the_question(ask, monkeypatch):
    monkeypatch.setattr(child, "SILENCE", 0.05)
    lines = []

    def say(line):
        lines.append(line)
        if line.endswith("waiting"):
            raise KeyboardInterrupt

    monkeypatch.setattr(child, "say", say)
    with pytest.raises(KeyboardInterrupt):
        ask("wait")
    assert re.fullmatch(r"  \d+\.\d s: starting", lines[0])
    assert not [each for each in psutil.Process().children() if "--child" in each.cmdline()]


def test_a_stand_in_gets_the_folder(tmp_path):
    program = "import os, sys; os.write(2, b'x' * 5000 + b'last words'); sys.exit(len(os.listdir(sys.argv[1])))"
    ended = child.run_child([sys.executable, "-c", program], tmp_path, {"number": 1}, "starting")
    assert (ended.code, ended.answer) == (2, {}), "the request and what stderr says"
    assert ended.last_words == "x" * 3990 + "last words"


def test_a_task_that_writes_on_leaves_no_folder_when_its_parent_has_ended(ask, tmp_path):
    folder = tmp_path / "folder"
    (folder / child.REQUEST).write_text(json.dumps({child.TASK: "tasks_of_child:write"}))
    process = start_python(*child_command()[1:], folder, stdin=subprocess.PIPE, stderr=None)
    assert process.stdout.readline() == "writing\n"
    process.communicate(timeout=30)  # closes the pipe that the child reads
    assert not folder.exists()


@pytest.mark.parametrize("first", [True, False], ids=["after a signal", "alone"])
def test_the_end_of_the_parent_does_not_hurry_a_job_that_saves(ask, tmp_path, first):
    """A scheduler may send a signal to all processes of a sweep."""
    folder = tmp_path / "folder"
    (folder / child.REQUEST).write_text(json.dumps({child.TASK: "tasks_of_child:save"}))
    process = start_python(*child_command()[1:], folder, stdin=subprocess.PIPE, stderr=None)
    assert process.stdout.readline() == "training\n"
    if first:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "saving\n"
    out, _ = process.communicate(timeout=30)  # closes the pipe that the child reads
    assert out.endswith("saved\n")
    assert process.returncode == 0
