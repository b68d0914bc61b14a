"""accumtrain.fit with data that is not read whole: tf.data, generator functions and PyDataset."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.errors import ConfigError, DataError
from tests.keras.cases import CROSS_ENTROPY, compiled, mlp, pair
from tests.keras.programs import ENVIRONMENT
from tests.keras.streams import BATCH, STREAMS, Batches, data_set, examples, generator

pytestmark = pytest.mark.usefixtures("empty_folder")


def fit(model: keras.Model, data: Any, updates: int = 3, **arguments: Any) -> dict[str, Any]:
    settings = {"train.steps": updates, "log.every": 1, **arguments.pop("settings", {})}
    return accumtrain.fit(
        model, data, **{"validation_data": examples(40), "steps": 4, "settings": settings, **arguments}
    )


def momentum() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


# --- order and passes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STREAMS)
def test_updates_are_those_of_keras_in_the_order_of_the_stream(kind: str, float64: None) -> None:
    """A pass has 90 examples, so that the third update is filled from the second pass."""
    build, arguments = STREAMS[kind]
    ours, plain = pair(mlp, optimizer=momentum, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(ours, build(90), 5, **arguments)
    x, y = (np.concatenate([array, array])[: 5 * BATCH] for array in examples(90))
    plain.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    for a, b in zip(ours.variables, plain.variables, strict=True):
        if a.dtype == "float64":
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("data", "arguments", "size"),
    [
        (lambda: Batches(90), {}, 90),
        (lambda: data_set(90), {}, 90),
        (lambda: data_set(90).batch(BATCH, drop_remainder=True), {}, 64),
        (lambda: data_set(90).batch(BATCH), {}, 96),  # it is not known that the last batch is smaller
        (lambda: data_set(90).repeat().batch(BATCH), {"steps_per_epoch": 7}, 224),
        (lambda: data_set(90).filter(lambda x, y: y < 3), {"steps_per_epoch": 2, "batch_size": 16}, 32),
        (lambda: lambda: generator(90), {"steps_per_epoch": 2}, 64),
        (lambda: Batches(90), {"steps_per_epoch": 2}, 64),
    ],
)
def test_how_many_examples_an_epoch_has(data: Callable[[], Any], arguments: dict[str, Any], size: int) -> None:
    summary = fit(compiled(), data(), 1, **arguments)
    assert summary["data"]["data.train.examples"] == size
    assert summary["batch_size"] == arguments.get("batch_size", BATCH)


@pytest.mark.parametrize(
    "data",
    [lambda: Batches(90), lambda: data_set(90).batch(7), lambda: lambda: generator(90)],
    ids=["PyDataset", "tf.data", "generator"],
)
def test_each_example_is_evaluated_once(data: Callable[[], Any]) -> None:
    model = compiled(metrics=["accuracy"])
    summary = fit(model, Batches(), 1, validation_data=data())
    expected = model.evaluate(*examples(90), verbose=0, return_dict=True)
    assert summary["data"]["data.val.examples"] == 90
    assert summary["val"] == pytest.approx(expected, rel=1e-5)


class Named(Batches):
    """Inputs and targets by name, and weights."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"x": x}, {"y": y}, np.ones(len(x))


def named() -> keras.Model:
    inputs = keras.Input((6,), name="x")
    model = keras.Model({"x": inputs}, {"y": keras.layers.Dense(4, name="y")(inputs)}, name="named")
    model.compile("adam", {"y": CROSS_ENTROPY})
    return model


def test_inputs_and_targets_by_name_with_weights() -> None:
    assert fit(named(), Named(), validation_data=Named())["step"] == 3


class OtherName(Named):
    def __getitem__(self, index: int) -> Any:
        x, y, weights = super().__getitem__(index)
        return (x if index != 1 else {"z": x["x"]}), y, weights


def test_another_name_in_a_later_batch_is_refused() -> None:
    message = "batch 1 of the PyDataset OtherName has inputs and targets .*'z': .*, and the first batch has .*'x': "
    with pytest.raises(DataError, match=message):
        fit(named(), OtherName(), validation_data=Named())


# --- continuing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PyDataset", "batches", pytest.param("generator", marks=pytest.mark.slow)])
def test_a_continued_run_has_the_same_bits(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    build, arguments = STREAMS[kind]
    for name, parts in (("parts", (4, 8)), ("whole", (8,))):
        keras.utils.set_random_seed(0)
        model = compiled(lambda: keras.Sequential([mlp(), keras.layers.Dropout(0.5)]))
        for updates in parts:
            fit(model, build(90), updates, run_name=name, **arguments)
        np.savez(name, *model.get_weights())
    with np.load("parts.npz") as continued, np.load("whole.npz") as whole:
        assert all(np.array_equal(continued[name], whole[name]) for name in whole.files)
    said = re.findall(r"reading (\d+) examples again, as the .* is read from its beginning", capsys.readouterr().out)
    assert said == ([] if kind == "PyDataset" else ["128"])


def test_a_py_dataset_is_read_where_it_is_needed() -> None:
    """The first and the last batch show its sizes. At most three are read ahead."""
    read = []
    for updates in (4, 6):
        data = Batches(100 * BATCH)
        fit(compiled(), data, updates, run_name="indexed")
        read.append(data.read)
    begun, continued = read
    assert begun[:6] == [0, 99, 0, 1, 2, 3]
    assert continued[:4] == [0, 99, 4, 5]
    assert max(begun[2:]) < 12 > max(continued[2:])


@pytest.mark.slow
def test_a_stream_that_begins_with_other_examples_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    data = data_set().shuffle(96, seed=1)
    said = []
    for given, updates in ((data, 2), (data_set().shuffle(96, seed=1), 3), (data, 4)):
        fit(compiled(), given, updates, run_name="shuffled")
        said.append("begins with other examples than at the beginning of this run" in capsys.readouterr().err)
    assert said == [False, False, True]


PROGRAM = """
import sys
import keras, numpy as np, tensorflow as tf
import accumtrain
from tests.keras.streams import STREAMS, examples

kind, name, updates = sys.argv[1], sys.argv[2], int(sys.argv[3])
keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(4)]
model = keras.Sequential([keras.Input((6,)), *layers], name=name)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
data = STREAMS[kind][0](90)
if isinstance(data, tf.data.Dataset):
    data = data.shuffle(20, seed=1)
callbacks = [keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.9), keras.callbacks.History()]
settings = {"train.steps": updates, "log.every": 4, "checkpoint.every": 5}
more = {"validation_data": examples(40), "callbacks": callbacks, "settings": settings, **STREAMS[kind][1]}
accumtrain.fit(model, data, steps=2, **more)
rates = callbacks[1].history["learning_rate"]
np.savez(name, *model.get_weights(), *[variable.numpy() for variable in model.optimizer.variables], rates=rates)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PyDataset", "examples", "generator"])
def test_a_killed_program_continues_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """With the learning rates that a callback has set."""
    checkpoints = tmp_path / "runs" / "killed" / "checkpoints"
    with start(tmp_path, kind, "killed", "1000000") as killed:
        try:
            while not any(checkpoints.glob("step-1[05]")) and killed.poll() is None:
                time.sleep(0.02)
        finally:
            killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    updates = str(max(int(path.name.partition("-")[2]) for path in checkpoints.glob("step-*")) + 12)
    for name in ("killed", "whole"):
        with start(tmp_path, kind, name, updates) as again:
            _, errors = again.communicate(timeout=120)
        assert again.returncode == 0, errors.decode()[-2000:]
    parts, whole = (np.load(tmp_path / f"{name}.npz") for name in ("killed", "whole"))
    assert whole.files == parts.files
    assert [name for name in whole.files if not np.array_equal(whole[name], parts[name])] == []
    assert len(set(whole["rates"])) > 2


# --- what is refused --------------------------------------------------------------------------------------------------


class Reshuffled(Batches):
    def on_epoch_end(self) -> None:
        """Would shuffle."""


class Uneven(Batches):
    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return tuple(array[index:] for array in super().__getitem__(index))


class Failing(Batches):
    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        if index == 1:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def failing(after: int) -> Callable[[], Iterator[Any]]:
    def batches() -> Iterator[Any]:
        for number, batch in enumerate(generator()):
            if number == after:
                raise OSError("the disk is gone")
            yield batch

    return batches


def changing() -> Iterator[Any]:
    yield examples(32)
    yield examples(32)[0][:, :5], examples(32)[1]


def otherwise(x: Any, y: Any) -> Callable[[], Iterator[Any]]:
    """The second batch is of x and y, as functions of those of the first."""

    def batches() -> Iterator[Any]:
        first = next(generator())
        yield first
        yield x(first[0]), y(first[1])

    return batches


def uneven() -> tf.data.Dataset:
    return data_set(4).batch(4).concatenate(data_set().batch(32))


def same(array: np.ndarray) -> np.ndarray:
    return array


GIVEN_AGAIN = generator()


def padded() -> tf.data.Dataset:
    lengths = tf.data.Dataset.from_tensor_slices([6] * 32 + [7] * 32)
    return lengths.map(lambda length: (tf.zeros([length]), 0)).padded_batch(32)


IN_A_DATA_SET = tf.data.Dataset.from_generator(
    failing(1), output_signature=(tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32))
)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (generator(), {}, "data is a generator, which can be read only once, .*: give the function that makes it"),
        (lambda: generator(), {}, "the generator <lambda> has an unknown number of examples: give steps_per_epoch"),
        (lambda: iter(()), {}, "the generator <lambda> is empty"),
        (data_set().repeat(), {}, "the tf.data.Dataset has no end: give steps_per_epoch"),
        (data_set().filter(lambda x, y: True), {}, "the tf.data.Dataset has an unknown number of examples"),
        (data_set().take(0), {}, "the tf.data.Dataset is empty"),
        (data_set().map(lambda x, y: x), {}, "an element of the tf.data.Dataset is a TensorSpec"),
        (data_set().map(lambda x, y: {"x": x}), {}, "an element of the tf.data.Dataset is a dict"),
        (data_set(), {"steps_per_epoch": 4}, "asks for 128 examples, and the tf.data.Dataset has 96: leave"),
        (Batches(), {"steps_per_epoch": 4}, "asks for 128 examples, and the PyDataset Batches has 96: leave"),
        (Batches(0), {}, "the PyDataset Batches is empty"),
        (Batches(), {"validation_data": None}, "validation_data is missing: the PyDataset Batches can't be divided"),
        (Batches(), {"validation_data": data_set().repeat()}, "has no end, and an evaluation reads all"),
        (Reshuffled(), {}, "the PyDataset Reshuffled has on_epoch_end, which may change its batches"),
        (Uneven(), {}, "batch 1 of the PyDataset Uneven has 31 examples instead of 32"),
        (Failing(), {}, "the PyDataset Failing can't be read: OSError: the disk is gone"),
        (failing(0), {"steps_per_epoch": 3}, "the generator batches can't be read: OSError: the disk is gone"),
        (failing(2), {"steps_per_epoch": 3}, "the generator batches can't be read: OSError: the disk is gone"),
        (IN_A_DATA_SET, {"steps_per_epoch": 3}, "the tf.data.Dataset can't be read: OSError: the disk is gone"),
        (changing, {"steps_per_epoch": 3}, "batch 1 of the generator changing has .*float32 \\[5\\].*: give all"),
        (otherwise(same, lambda y: y + 0.7), {"steps_per_epoch": 2}, "batch 1 of .* has inputs .*'float32 .*give all"),
        (otherwise(lambda x: {"x": x}, same), {"steps_per_epoch": 2}, "batch 1 of .* targets \\({'x': 'float32"),
        (lambda: GIVEN_AGAIN, {"steps_per_epoch": 2}, "the generator <lambda> returns the same iterator again"),
        (uneven(), {"batch_size": 4}, "batches have different sizes, .*: give steps_per_epoch"),
        (padded(), {}, "does not take a value of the data: Matrix size-incompatible"),
        (lambda: generator(60), {"steps_per_epoch": 3}, "it ends before the example 65, and steps_per_epoch asks"),
    ],
)  # fmt: skip
def test_streams_that_are_refused(data: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"(?s){message}"):
        fit(compiled(), data, **{"batch_size": BATCH, **arguments})


@pytest.mark.parametrize("later", [96, 32])
def test_validation_data_must_stay_the_same(later: int) -> None:
    """It is counted once, and read at the end of each epoch."""
    sizes = iter([64, 64, 64, later])

    def batches() -> Iterator[Any]:
        return generator(next(sizes))

    with pytest.raises(DataError, match="the val examples are no longer the 64 that were counted at the beginning"):
        fit(compiled(), Batches(), 6, validation_data=batches)


def test_validation_data_that_can_not_be_read_is_named() -> None:
    readings = iter([generator, generator, generator, failing(1)])
    message = "the generator validated can't be read: OSError: the disk is gone"

    def validated() -> Iterator[Any]:
        return next(readings)()

    with pytest.raises(DataError, match=message):
        fit(compiled(), Batches(), 6, validation_data=validated)


def test_validation_data_by_name_in_another_order() -> None:
    first, second = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    outputs = keras.layers.Dense(4)(keras.layers.Concatenate()([first, second]))
    model = keras.Model({"a": first, "b": second}, outputs, name="two")
    model.compile("adam", CROSS_ENTROPY)
    x, y = examples()
    summary = accumtrain.fit(model, ({"a": x, "b": -x}, y), validation_data=({"b": -x, "a": x}, y))
    assert summary["val"]["loss"] == pytest.approx(model.evaluate({"a": x, "b": -x}, y, verbose=0), rel=1e-5)


def test_epochs_of_batches_of_different_sizes() -> None:
    assert fit(compiled(), uneven(), 6, steps_per_epoch=3, batch_size=32)["step"] == 6


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (examples(), {"steps_per_epoch": 2}, "steps_per_epoch=2: an epoch of arrays .* is a pass over them"),
        (Batches(), {"steps_per_epoch": 0}, "steps_per_epoch=0: must be a whole number, 1 or more"),
        (Batches(), {"batch_size": 0}, "batch_size=0: must be a whole number, 1 or more"),
        (Batches(), {"steps": 5}, "batch_size=32 is not divisible by accum.steps=5"),
    ],
)
def test_numbers_that_are_refused(data: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(compiled(), data, **arguments)


# --- other jobs and runtimes ------------------------------------------------------------------------------------------


def test_verify_takes_the_first_examples() -> None:
    data = Batches()
    assert fit(compiled(), data, job="verify")["passed"]
    assert max(data.read) <= 3


@pytest.mark.slow
def test_plan_and_auto_take_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    endless = data_set().repeat().batch(BATCH)
    plan = fit(compiled(), endless, job="plan", steps_per_epoch=3)
    assert {trial["micro_batch"] for trial in plan["trials"]} >= {2, 32}
    assert fit(compiled(), endless, steps="auto", memory_limit_mb=2000, steps_per_epoch=3)["accum_steps"] == 1


@pytest.mark.slow
@pytest.mark.xla
@pytest.mark.parametrize("kind", ["PyDataset", "batches"])
def test_jax_computes_from_streams(kind: str) -> None:
    pytest.importorskip("jax")
    build, arguments = STREAMS[kind]
    models = pair(mlp, optimizer=momentum, loss=CROSS_ENTROPY)
    for model, runtime in zip(models, ("jax", "tensorflow"), strict=True):
        settings = {"device.runtime": runtime}
        fit(model, build(90), 5, validation_data=build(90), run_name=runtime, settings=settings, **arguments)
    for a, b in zip(*(model.trainable_variables for model in models), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-6)
