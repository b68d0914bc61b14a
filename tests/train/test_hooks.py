"""Functions of a user's program that a training calls: when, with what, and what they can do."""

import sys
from contextlib import nullcontext
from types import ModuleType

import pytest

from accumtrain.config.arithmetic import Epochs
from accumtrain.config.schema import Config
from accumtrain.dispatch import run
from accumtrain.errors import AccumtrainError, ConfigError, Preempted
from accumtrain.report.compare import read_ranked
from accumtrain.report.pictures import list_metrics
from accumtrain.runs.checkpoint_store import newest_manifest
from accumtrain.train import hooks
from accumtrain.train.hooks import BEGINNINGS, EPOCH, Hook, Hooks, add_hook, hook_modules, hooked
from accumtrain.train.metrics import Position
from tests.train.conftest import records_of


@pytest.fixture(autouse=True)
def added():
    """The hooks of a test, and of no other."""
    yield hooks.ADDED
    hooks.ADDED.clear()


@pytest.fixture(scope="module")
def small(compose):
    def config(folder, *overrides):
        return compose(
            *("model=lenet5", "optim=adam", "batch_size=64", "accum.steps=2", "train.steps=8", "eval.every=4"),
            *(
                "checkpoint.every=6",
                "log.every=100",
                f"run.dir={folder}",
                "run.name=one",
                "data.val_fraction=0",
                *overrides,
            ),
        )

    return config


def test_hooks_are_called_after_what_they_ask_for(small, tmp_path):
    seen = {event: [] for event in hooks.EVENTS}

    def noted(event):
        def hook(state):
            seen[event].append(state)
            saved = sorted(path.name for path in (state.folder / "checkpoints").glob("step-*"))
            assert (f"step-{state.step}" in saved) == (event in ("checkpoint", "end")), "before its checkpoint"
            state.log({f"{event}_weights": sum(abs(each.numpy()).sum() for each in state.model.learnable)})

        return hook

    for event in hooks.EVENTS:
        add_hook(noted(event), every=3 if event == "update" else 1, on=event)
    summary = run(small(tmp_path))
    steps = {event: [state.step for state in states] for event, states in seen.items()}
    assert steps == {"update": [3, 6], "evaluation": [4, 8], "checkpoint": [6, 8], "end": [8]}
    first = seen["update"][0]
    assert (first.total_steps, first.epoch) == (8, pytest.approx(3 * 64 / 1437))
    assert first.metrics.keys() == {"loss", "accuracy", "learning_rate", "grad_norm"}
    assert {seen[event][-1].metrics["loss"] for event in ("evaluation", "end")} == {summary["test"]["loss"]}
    logged = [(record["step"], name) for record in records_of(tmp_path / "one", "hook") for name in record]
    assert [pair for pair in logged if pair[1].endswith("_weights")] == [
        *((3, "update_weights"), (4, "evaluation_weights"), (6, "update_weights"), (6, "checkpoint_weights")),
        *((8, "evaluation_weights"), (8, "checkpoint_weights"), (8, "end_weights")),
    ]
    (ranked,) = read_ranked([tmp_path / "one"])
    assert "hook" not in {record["split"] for record in ranked.records}
    assert list_metrics([ranked.records]) == ["loss", "accuracy"]


def test_a_hook_changes_no_bit(small, tmp_path):
    def train(name):
        run(small(tmp_path, "train.steps=5", "log.every=1", f"run.name={name}"))
        return [record for record in records_of(tmp_path / name) if record["split"] != "hook"]

    without = train("without")
    add_hook(lambda state: state.log({"seen": state.step}))
    assert train("with") == without


def test_a_hook_stops_a_run_as_a_signal_does(small, tmp_path):
    add_hook(lambda state: state.request_stop("the disk is nearly full"), every=3)
    with pytest.raises(Preempted, match=r"stopped after update 3 of 8, .*as a hook asked: the disk is nearly full; "):
        run(small(tmp_path))
    with pytest.raises(Preempted, match="update 6 of 8"):
        run(small(tmp_path))
    assert run(small(tmp_path))["step"] == 8


@pytest.mark.slow
def test_a_hook_keeps_values_and_ends_a_run(small, tmp_path, capsys):
    """A longer run goes on, and a checkpoint holds what was kept."""

    def count(state):
        state.kept["calls"] = state.kept.get("calls", 0) + 1
        if state.kept["calls"] == 5:
            state.finish("five are enough")

    add_hook(count)
    run(small(tmp_path, "train.steps=3"))
    for _ in range(2):
        summary = run(small(tmp_path))
        assert (summary["status"], summary["step"]) == ("completed", 5)
        assert "stopping early after update 5, epoch 0.2227: five are enough\n" in capsys.readouterr().out
    assert run(small(tmp_path, "train.steps=9"))["step"] == 9


def test_what_a_function_returns_is_kept_in_each_checkpoint(small, tmp_path):
    asked = []

    def keep(state):
        state.kept["asked"] = lambda: len(asked.append(1) or asked)

    with hooked([Hook(keep, 1, "begin")]):
        run(small(tmp_path))
    kept = newest_manifest(tmp_path / "one" / "checkpoints")["hooks"]["kept"]
    assert kept == {"asked": len(asked)}
    assert len(asked) <= 5, "at the beginning, after updates 6 and 8, and for the best states of 4 and 8"


def test_a_run_of_several_workers_is_not_ended_by_one(added, monkeypatch):
    monkeypatch.setattr(Position, "epoch", 1.0)
    monkeypatch.setattr(Position, "epochs_begun", lambda position, step: 1)
    add_hook(lambda state: state.finish("mine"))
    parts = {"position": Position(Epochs(Config(), 64)), "within": nullcontext, "model": None, "folder": None}
    hooks = Hooks(added, print, alone=False, total_steps=1, **parts)
    with pytest.raises(ConfigError, match=r"finish\('mine'\), which only this worker would do: call request_stop"):
        hooks.call("update")


@pytest.mark.slow
def test_hooks_at_beginnings_and_at_the_ends_of_epochs(small, tmp_path):
    """Epochs of 1437 examples end within updates 3 and 6. A stopped epoch goes on where it was."""
    told = []

    def note(event):
        def hook(state):
            told.append((event, state.step))
            if event == "update" and state.step == 4:
                state.request_stop("enough")
            if event == EPOCH:
                means.append(state.epoch_metrics["loss"])

        return hook

    def train():
        with hooked([Hook(note(event), 1, event) for event in (*BEGINNINGS, EPOCH, "update")]):
            run(small(tmp_path, "batch_size=512", "accum.steps=8", "train.steps=7", "log.every=1", "eval.every=100"))

    means = []
    with pytest.raises(Preempted):
        train()
    train()
    begun = [("update_begin", step) for step in range(7)]
    ends = [("update", step) for step in range(1, 8)]
    first = [("begin", 0), ("epoch_begin", 0), begun[0], ends[0], begun[1], ends[1], begun[2], ends[2], (EPOCH, 3)]
    stopped = [("epoch_begin", 3), begun[3], ends[3], begun[4]]  # it stops once the update has begun
    rest = [("begin", 4), begun[4], ends[4], begun[5], ends[5], (EPOCH, 6), ("epoch_begin", 6), begun[6], ends[6]]
    assert told == [*first, *stopped, *rest, ("evaluation_begin", 7), (EPOCH, 7)]
    losses = [record["loss"] for record in records_of(tmp_path / "one", "train")]
    assert means == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]])


@pytest.mark.parametrize("error", [AccumtrainError("the gradient exploded"), ZeroDivisionError("mine")])
def test_an_error_of_a_hook_ends_the_run(small, tmp_path, error):
    def fail(state):
        raise error

    add_hook(fail, every=7)
    with pytest.raises(type(error), match=str(error)):
        run(small(tmp_path))
    assert (tmp_path / "one" / "checkpoints" / "step-6").is_dir(), "the last checkpoint stays"


@pytest.mark.parametrize(
    ("logged", "message"),
    [
        ({"step": 1.0}, "each record has step already"),
        ({"seconds": 1.0}, "each record has seconds already"),
        ({"x": "text"}, r"log\({'x': 'text'}\): it takes numbers by name"),
        (5, r"log\(5\): it takes numbers by name"),
    ],
)
def test_what_can_not_be_logged_is_refused(small, tmp_path, logged, message):
    add_hook(lambda state: state.log(logged))
    with pytest.raises(ConfigError, match=message):
        run(small(tmp_path))


def imported(added):
    return Hooks(added, print, position=Position(Epochs(Config(), 64)), within=nullcontext, alone=False, total_steps=1)


def test_a_hook_by_name_is_imported_when_the_run_begins(added, monkeypatch):
    add_hook("my_hooks:tell")
    assert hook_modules() == {"my_hooks"}
    with pytest.raises(ConfigError, match=r"the hook my_hooks:tell can't be imported: No module named 'my_hooks'"):
        imported(added)
    module = ModuleType("my_hooks")
    monkeypatch.setitem(sys.modules, "my_hooks", module)
    with pytest.raises(ConfigError, match="has no attribute 'tell'"):
        imported(added)
    module.tell = print
    assert [function for _, function in imported(added).due("update", 1)] == [print]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "epoch"}, "on='epoch': must be one of update, evaluation, checkpoint, end"),
        ({"every": 0}, "every=0: must be a whole number of updates, 1 or more"),
        ({"every": "2"}, "every='2': must be a whole number"),
        ({"every": 2, "on": "end"}, "leave it out unless on is 'update'"),
        ({"function": None}, "None is not a function"),
        ({"function": "my_hooks"}, "write 'module:function'"),
    ],
)
def test_what_is_no_hook_is_refused(arguments, message, added):
    with pytest.raises((TypeError, ValueError), match=message):
        add_hook(**{"function": print, **arguments})
    assert added == []
