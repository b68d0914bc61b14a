"""Keras callbacks in accumtrain.fit: their effects are those in plain Keras, and they are continued."""

from __future__ import annotations

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks as kc

import accumtrain
from accumtrain.engine.step import Step
from accumtrain.errors import CheckpointError, ConfigError, Preempted
from accumtrain.keras.run.callbacks import _pack, _unpack_all
from tests.keras.streams import Batches, examples

pytestmark = pytest.mark.usefixtures("empty_folder")
EPOCHS = 12


def built(optimizer: Any = None, name: str = "net") -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((6,)), *layers], name=name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(1.0), loss, metrics=["accuracy"])
    return model


def fit(model: keras.Model, *callbacks: kc.Callback, epochs: float = EPOCHS, **arguments: Any) -> dict[str, Any]:
    given = {"validation_data": examples(), "steps": 4, **arguments}
    return accumtrain.fit(model, Batches(), epochs=epochs, callbacks=callbacks, **given)


def fit_in_keras(model: keras.Model, *callbacks: kc.Callback, epochs: int = EPOCHS) -> None:
    given = {"validation_data": examples(), "shuffle": False, "verbose": 0}
    model.fit(Batches(), epochs=epochs, callbacks=list(callbacks), **given)


def assert_close(*models: keras.Model) -> None:
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def same_weights(*models: keras.Model) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(*(model.get_weights() for model in models), strict=True))


# --- effects ----------------------------------------------------------------------------------------------------------


def test_effects_are_those_in_keras(float64: None) -> None:
    """The epoch of the end, learning rates, logs, and the files that are written."""

    def of(folder: str) -> list[kc.Callback]:
        Path(folder).mkdir()
        return [
            kc.ReduceLROnPlateau(patience=0, factor=0.5, min_delta=0.03, cooldown=1),
            kc.EarlyStopping(patience=2, min_delta=0.01, restore_best_weights=True),
            kc.ModelCheckpoint(f"{folder}/{{epoch}}-{{val_loss:.3f}}.weights.h5", save_weights_only=True),
            kc.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True),
            kc.ModelCheckpoint(f"{folder}/every-4.keras", save_freq=4),
            kc.CSVLogger(f"{folder}/log.csv"),
            kc.TensorBoard(f"{folder}/tensorboard", update_freq=2),
            kc.History(),
        ]

    ours, plain = built(), built()
    given, expected = of("ours"), of("plain")
    fit(ours, *given)
    fit_in_keras(plain, *expected)
    history, plain_history = given[-1].history, expected[-1].history
    assert given[-1].epoch == expected[-1].epoch
    assert 2 < len(given[-1].epoch) < EPOCHS
    assert history.keys() == plain_history.keys()
    for name in history:
        np.testing.assert_allclose(history[name], plain_history[name], rtol=1e-6, err_msg=name)
    assert len(set(history["learning_rate"])) > 2
    assert float(ours.optimizer.learning_rate) == float(plain.optimizer.learning_rate)
    assert files_in("ours") == files_in("plain")
    assert_close(ours, plain)  # the weights of the best epoch
    last = f"{len(given[-1].epoch)}-{history['val_loss'][-1]:.3f}.weights.h5"
    for model, folder in ((ours, "ours"), (plain, "plain")):
        model.load_weights(f"{folder}/{last}")
    assert_close(ours, plain)
    for part in ("train", "validation"):
        assert tags_in(f"ours/tensorboard/{part}")
        assert tags_in(f"ours/tensorboard/{part}") == tags_in(f"plain/tensorboard/{part}")


def files_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def tags_in(folder: str) -> set[tuple[int, str]]:
    """Steps and names of the scalars of epochs and batches in event files."""
    events = (event for file in Path(folder).iterdir() for event in tf.compat.v1.train.summary_iterator(str(file)))
    tags = {(event.step, value.tag) for event in events for value in event.summary.value}
    return {(step, tag) for step, tag in tags if tag.startswith(("epoch_", "batch_"))}


class Told(kc.Callback):
    """Notes each call, and the names in its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def note(self, name: str, *arguments: Any) -> None:
        place, logs = (None, *arguments) if len(arguments) < 2 else arguments
        self.calls.append([name, place, sorted(logs), int(self.model.optimizer.iterations)])

    def on_train_begin(self, logs: Any) -> None:
        self.note("train begin", logs)

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self.note("epoch begin", epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any) -> None:
        self.note("batch begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any) -> None:
        self.note("batch end", batch, logs)

    def on_test_begin(self, logs: Any) -> None:
        self.note("test begin", logs)

    def on_test_end(self, logs: Any) -> None:
        self.note("test end", logs)

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.note("epoch end", epoch, logs)

    def on_train_end(self, logs: Any) -> None:
        self.note("train end", logs)


def test_calls_are_those_of_keras() -> None:
    told, expected = Told(), Told()
    fit(built(), told, epochs=2)
    fit_in_keras(built(), expected, epochs=2)
    assert told.calls == expected.calls
    assert told.params == {"verbose": 0, "epochs": 2, "steps": 3}


def test_epochs_that_end_amid_an_update_are_counted_as_in_keras() -> None:
    """10 epochs of 100 examples are 31.25 updates."""
    x, y = examples(100)
    told, expected = Told(), Told()
    given = {"batch_size": 32, "epochs": 10}
    accumtrain.fit(built(), (x, y), validation_data=(x, y), callbacks=[told], **given)
    built().fit(x, y, callbacks=[expected], verbose=0, **given)
    assert told.params == {**expected.params, "verbose": 0} == {"verbose": 0, "epochs": 10, "steps": 4}
    begun, plain = ([call[1] for call in each.calls if call[0] == "epoch begin"] for each in (told, expected))
    assert begun == plain


@pytest.mark.parametrize("runtime", ["tensorflow", pytest.param("jax", marks=pytest.mark.xla)])
def test_what_a_callback_assigns_counts(runtime: str, float64: None) -> None:
    """Weights at an update, and the rate at an epoch."""

    def halved() -> list[kc.Callback]:
        def halve(batch: int, logs: Any) -> None:
            assert logs["loss"] > 0
            if batch == 1:
                kernel = of["model"].layers[0].kernel
                kernel.assign(kernel / 2)

        return [kc.LambdaCallback(on_train_batch_end=halve), kc.LearningRateScheduler(lambda epoch, rate: rate / 2)]

    models = []
    for train in (fit, fit_in_keras):
        of = {"model": built()}
        more = {"settings": {"device.runtime": runtime}} if train is fit else {}
        if runtime == "jax":
            pytest.importorskip("jax")
        train(of["model"], *halved(), epochs=3, **more)
        models.append(of["model"])
    assert_close(*models)
    assert float(models[0].optimizer.learning_rate) == 0.125


class StopAt(kc.Callback):
    def __init__(self, epoch: int, batch: int):
        super().__init__()
        self.place, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.place:
            self.model.stop_training = True


@pytest.mark.slow
def test_a_training_that_is_stopped_amid_an_epoch_is_evaluated_there() -> None:
    ours, plain = Told(), Told()
    model, expected = built(), built()
    summary = fit(model, ours, StopAt(1, 0))
    fit_in_keras(expected, plain, StopAt(1, 0))
    assert ours.calls == plain.calls
    assert (summary["status"], summary["step"]) == ("completed", 4)


def test_a_training_that_is_stopped_at_the_beginning_of_an_epoch_makes_one_update_of_it() -> None:
    class StopAtBegin(kc.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    ours, plain = built(), built()
    fit(ours, StopAtBegin())
    fit_in_keras(plain, StopAtBegin())
    assert int(ours.optimizer.iterations) == int(plain.optimizer.iterations) == 4


def test_a_run_that_a_callback_has_ended_stays_so_until_it_is_longer(capsys: pytest.CaptureFixture[str]) -> None:
    model = built()
    assert fit(model, StopAt(1, 0))["step"] == 4
    assert fit(built(), StopAt(1, 0))["step"] == 4
    assert "stopping early after update 4, epoch 1.333: a callback has set stop_training" in capsys.readouterr().out
    told = Told()
    assert fit(built(), told, epochs=3)["step"] == 9
    assert [call[1] for call in told.calls if call[0] == "epoch begin"] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("callback", "alone"),
    [
        (lambda: kc.EarlyStopping("loss", patience=99), False),
        (lambda: kc.ModelCheckpoint("a.keras", "loss"), False),
        (lambda: kc.LambdaCallback(on_epoch_end=print), False),
        (lambda: kc.ModelCheckpoint("a.keras", save_freq=40), True),
        (lambda: kc.LambdaCallback(on_train_batch_begin=lambda *_: None), True),
        (lambda: StopAt(-1, 0), True),
    ],
)
def test_only_a_callback_at_updates_keeps_them_apart(
    callback: Callable[[], kc.Callback], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = []
    monkeypatch.setattr(Step, "updates", noting(together, Step.updates))
    fit(built(), callback(), epochs=40, settings={"eval.every": 1000, "log.every": 1000})
    assert bool(together) is not alone


def noting(counts: list[int], updates: Callable[..., Any]) -> Callable[..., Any]:
    def noted(step: Step, batches: Any, count: int) -> Any:
        counts.append(count)
        return updates(step, batches, count)

    return noted


# --- continuing -------------------------------------------------------------------------------------------------------


def some() -> list[kc.Callback]:
    """Callbacks whose state is plain numbers."""
    plateau = kc.ReduceLROnPlateau(patience=0, factor=0.5, min_delta=0.03, cooldown=1)
    return [plateau, kc.EarlyStopping(patience=3, min_delta=0.01), kc.History(), Told()]


@pytest.fixture
def whole() -> tuple[keras.Model, kc.History]:
    """A training that was not stopped."""
    model, given = built(), some()
    fit(model, *given, run_name="whole")
    assert 4 < len(given[2].epoch) < EPOCHS
    return model, given[2]


class Interrupt(kc.Callback):
    """Is Ctrl-C after a batch of an epoch."""

    def __init__(self, epoch: int, batch: int):
        super().__init__()
        self.place = epoch, batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = self.params["steps"]
        if divmod(int(self.model.optimizer.iterations) - 1, steps) == self.place:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("place", [(2, 0), (3, 2)], ids=["amid an epoch", "at its end"])
@pytest.mark.parametrize("anew", [True, False], ids=["another model", "the same model"])
def test_a_continued_run_goes_on_with_the_state_of_callbacks(
    place: tuple[int, int],
    anew: bool,
    whole: tuple[keras.Model, kc.History],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same model has the learning rate that callbacks have set."""
    model, given = built(), some()
    with pytest.raises(Preempted):
        fit(model, *given, Interrupt(*place))
    if anew:
        model, given = built(), some()
    fit(model, *given)
    assert same_weights(model, whole[0])
    assert given[2].history == whole[1].history
    assert "begins anew" not in capsys.readouterr().out


def test_an_epoch_whose_end_was_not_saved_is_ended_again(whole: tuple[keras.Model, kc.History]) -> None:
    """The best state is written before callbacks see the end of its epoch."""
    fit(built(), *some(), epochs=3)
    best = max(Path("runs/net/checkpoints/best").glob("step-*"))
    for path in Path("runs/net/checkpoints").glob("step-*"):
        shutil.rmtree(path)
    assert best.name in ("step-6", "step-9")
    model, given = built(), some()
    fit(model, *given)
    assert same_weights(model, whole[0])
    assert given[2].history == whole[1].history


@pytest.mark.slow
def test_a_callback_that_begins_anew_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def given() -> list[kc.Callback]:
        return [kc.EarlyStopping(patience=9, restore_best_weights=True), kc.CSVLogger("log.csv", append=True)]

    fit(built(), *given(), epochs=1)
    assert "begins anew" not in capsys.readouterr().out
    fit(built(), *given(), Told(), settings={"train.steps": 5})
    said = capsys.readouterr().out
    assert "EarlyStopping begins anew, as checkpoints do not hold its best_weights\n" in said
    assert "CSVLogger begins anew, as checkpoints do not hold its writer\n" in said
    assert "Told begins anew, as the session before had none\n" in said
    late = Told()
    fit(built(), *given(), Told(), late, epochs=2)
    assert late.calls[:3] == [["train begin", None, [], 5], ["epoch begin", 1, [], 5], ["batch begin", 0, [], 5]]


@pytest.mark.slow
def test_epochs_of_a_session_without_callbacks_count() -> None:
    """A callback that was away begins anew."""
    for epochs, callbacks in ((2, [kc.History()]), (4, []), (5, [history := kc.History()])):
        fit(built(), *callbacks, epochs=epochs)
    assert history.epoch == [4]


@pytest.mark.slow
def test_a_run_with_averages_of_weights_continues_from_its_best_state() -> None:
    """The callback has the averages in the model while it is evaluated."""

    def train(epochs: int, **arguments: Any) -> keras.Model:
        model = built(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.9))
        fit(model, kc.SwapEMAWeights(), epochs=epochs, **arguments)
        return model

    whole = train(6, run_name="whole")
    train(3)
    for path in Path("runs/net/checkpoints").glob("step-*"):
        shutil.rmtree(path)
    assert [path.name for path in Path("runs/net/checkpoints/best").glob("step-*")] == ["step-9"]
    assert same_weights(train(6), whole)


class Counted(kc.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[str, int] = defaultdict(int)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs["all"] += 1


def test_a_kind_of_dict_is_no_plain_value(capsys: pytest.CaptureFixture[str]) -> None:
    for epochs in (1, 2):
        fit(built(), Counted(), epochs=epochs)
    assert "Counted begins anew, as checkpoints do not hold its epochs\n" in capsys.readouterr().out


# --- what is refused --------------------------------------------------------------------------------------------------


def at_epoch(change: Callable[[keras.Model], Any]) -> kc.Callback:
    class Changing(kc.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            change(self.model)

    return Changing()


def replace_rate(model: keras.Model) -> None:
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)


CHANGED = "Changing.on_epoch_end has changed the optimizer, the loss, a step or what is trainable of net"


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (lambda: "stop", "callbacks holds a str: give a list of keras.callbacks.Callback"),
        (lambda: kc.BackupAndRestore("backup"), "BackupAndRestore saves and restores the model, .*: leave it out"),
        (lambda: at_epoch(lambda model: model.compile("adam", "mse")), CHANGED),
        (lambda: at_epoch(lambda model: setattr(model, "optimizer", keras.optimizers.SGD(0.1))), CHANGED),
        (lambda: at_epoch(lambda model: setattr(model, "train_step", print)), CHANGED),
        (lambda: at_epoch(lambda model: setattr(model.layers[0], "trainable", False)), CHANGED),
        (lambda: at_epoch(replace_rate), CHANGED),
    ],
)
def test_what_is_refused(callback: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(built(), callback())


@pytest.mark.parametrize(("callbacks", "kind"), [(None, "NoneType"), (kc.History(), "History")])
def test_callbacks_are_a_list(callbacks: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"callbacks is a {kind}: give a list of keras.callbacks.Callback"):
        accumtrain.fit(built(), Batches(), validation_data=examples(), callbacks=callbacks)


def test_a_schedule_can_not_be_reduced_as_in_keras() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 100, 0.9)
    reduce = kc.ReduceLROnPlateau(patience=0, min_delta=100.0)
    with pytest.raises(TypeError, match="its learning rate is not settable"):
        fit(built(keras.optimizers.SGD(schedule)), reduce)


def test_a_method_that_is_not_called_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Counting(kc.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            raise AssertionError

    fit(built(), Counting(), epochs=1)
    assert "Counting: on_test_batch_begin and on_test_batch_end are not called" in capsys.readouterr().err


ODD_ATTRIBUTES = [  # as a checkpoint that somebody has changed may hold them
    ({"on_epoch_end": 1}, "EarlyStopping.on_epoch_end is a method"),
    ({"best": {"float": "much"}}, "it holds no attributes of EarlyStopping"),
    ({"best": {"list": 5}}, "it holds no attributes of EarlyStopping"),
    ({"best": {"set": []}}, "it holds no attributes of EarlyStopping"),
    ({"best": {"float": 1, "list": []}}, "it holds no attributes of EarlyStopping"),
    ({"best": {"function": ["os"]}}, "it holds no attributes of EarlyStopping"),
    ({"best": {"function": [["os"], "system"]}}, "it holds no attributes of EarlyStopping"),
    ({"monitor_op": {"function": ["shutil", "rmtree"]}}, "it holds no attributes of EarlyStopping"),
]


@pytest.mark.parametrize(("values", "message"), ODD_ATTRIBUTES)
def test_attributes_that_no_run_keeps_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"a checkpoint is damaged: {message}; delete it"):
        _unpack_all(kc.EarlyStopping, values)


def test_a_checkpoint_names_functions_of_keras_alone() -> None:
    """A callback would call others."""
    less = keras.ops.less
    assert _unpack_all(kc.EarlyStopping, {"monitor_op": _pack(less)}) == {"monitor_op": less}
