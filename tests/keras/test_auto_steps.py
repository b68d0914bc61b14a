"""accumulate(model, "auto"): the choice with made-up probes, what it refuses, and real probes of a real model."""

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import OutOfMemoryError
from accumtrain.keras import accumulate, auto_steps
from accumtrain.keras.auto_steps import StepTrial, batch_of, micro_batches, probe_steps, write_probe
from accumtrain.keras.known import Declared
from accumtrain.process import child

MB = 2**20
X, Y = np.ones((10, 3)), np.arange(10)


def model_of(*layers: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture
def probes(monkeypatch):
    """Put made-up probes of 20 MB and 2 MB an example in the place of real ones. Return the list of their calls."""
    calls: list[tuple[int, int]] = []

    def write(model: keras.Model, batch: Any, folder: Path) -> None:
        assert {len(array) for array in batch} == {100}

    def probe(folder: Path, steps: int, micro_batch: int, limit_mb: float | None, declared: Declared) -> StepTrial:
        calls.append((steps, micro_batch))
        used = (20 + 2 * micro_batch) * MB
        fits = limit_mb is None or used <= limit_mb * MB
        return StepTrial(steps, micro_batch, fits, used, 10 * used) if fits else StepTrial(steps, micro_batch, fits)

    monkeypatch.setattr(auto_steps, "write_probe", write)
    monkeypatch.setattr(auto_steps, "probe_steps", probe)
    return calls


@pytest.mark.parametrize(("limit", "steps"), [(22, 100), (71, 4), (88, 3), (89, 3), (219, 2), (220, 1), (1000, 1)])
def test_the_smallest_number_of_micro_batches_that_fits_is_installed(probes, capsys, limit, steps):
    model = model_of()
    assert accumulate(model, "auto", data=(X, Y), batch_size=100, memory_limit_mb=limit) is model
    assert model.train_step._steps == steps
    assert len(probes) <= 6
    out = capsys.readouterr().out
    assert f"steps for batch_size=100 in memory_limit_mb={limit}\nsteps  micro-batch  tensors at peak" in out
    assert f"steps={steps}: micro-batch {math.ceil(100 / steps)}" in out
    assert "\n  22.0 MB of tensors, 220.0 MB of the whole process: fits\n" in out, "as soon as a probe ends"


def test_without_a_limit_resident_memory_counts(probes, monkeypatch, capsys):
    monkeypatch.setattr(auto_steps, "budget", lambda limit: 1e12 if limit is None else pytest.fail("no limit"))
    assert accumulate(model_of(), "auto", data=(X, Y), batch_size=100).train_step._steps == 1
    assert "of free memory" in capsys.readouterr().out


def test_nothing_fits(probes):
    with pytest.raises(OutOfMemoryError, match=r"micro-batch of 1 fits in memory_limit_mb=21: raise .* to 24 at least"):
        accumulate(model_of(), "auto", data=(X, Y), batch_size=100, memory_limit_mb=21)


@pytest.mark.parametrize("batch_size", [1, 2, 7, 96, 97])
def test_each_size_belongs_to_one_number_of_micro_batches(batch_size):
    sizes = micro_batches(batch_size)
    assert sizes[0] == 1
    assert sizes[-1] == batch_size
    for size in sizes:
        steps = math.ceil(batch_size / size)
        assert math.ceil(batch_size / steps) == size
        assert steps == 1 or math.ceil(batch_size / (steps - 1)) > size, "no smaller number has it"


def test_a_batch_of_arrays_is_as_fit_would_make_it():
    x, y, weight = batch_of((X, Y, np.ones(10, np.float16)), 23)
    assert (x.shape, x.dtype, y.dtype, weight.dtype) == ((23, 3), np.float32, Y.dtype, np.float32)
    assert [*y] == [*range(10), *range(10), *range(3)]


def test_a_batch_of_nested_arrays():
    x, y = batch_of(([X, {"a": X}], (Y, Y)), 4)
    assert isinstance(x, tuple)  # as tf.data takes a list for one tensor
    assert x[1]["a"].shape == (4, 3)
    assert [part.shape for part in y] == [(4,), (4,)]
    assert batch_of(X, 4).shape == (4, 3)


def test_a_batch_of_a_data_set_keeps_its_dtypes():
    x, y = batch_of(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), 20)
    assert (x.shape, x.dtype) == ((20, 3), np.float64)
    assert [*y[6:10]] == [6, 7, 0, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"give data=\(x, y\)"),
        ((X, Y[:9]), "arrays of 9 and 10 examples"),
        ((X[:0], Y[:0]), "arrays of 0 examples"),
        ((X, 3.0), "first axis"),
        ((tf.ragged.constant([[1.0], []]), Y[:2]), "a batch with a RaggedTensor can't be split"),
    ],
)
def test_data_that_is_no_batch_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        batch_of(data, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 4, "batch_size": 8}, "steps=4: data, batch_size and memory_limit_mb are for steps='auto'"),
        ({"data": (X, Y)}, "batch_size=None: give the number of examples"),
        ({"data": (X, Y), "batch_size": 8, "memory_limit_mb": 0}, "memory_limit_mb=0: give MiB"),
        ({"data": (X, Y), "batch_size": 8, "memory_limit_mb": "2GB"}, "memory_limit_mb='2GB': give MiB"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        accumulate(model_of(), **{"steps": "auto", **arguments})


def test_a_model_that_is_not_compiled_is_refused():
    with pytest.raises(ValueError, match=r"is not compiled: .* call compile before"):
        accumulate(keras.Sequential([keras.layers.Dense(1)]), "auto", data=(X, Y), batch_size=8)


def test_a_model_that_can_not_be_read_is_refused(monkeypatch):
    def measure(request: Any, folder: Path) -> Any:
        return child.raise_child_error(child.ChildResult(2, {"message": "it can't be made again"}, ""), "a probe")

    monkeypatch.setattr(auto_steps, "measure_in_child", measure)
    with pytest.raises(ValueError, match="it can't be made again"):
        accumulate(model_of(), "auto", data=(X, Y), batch_size=8)


def large_model() -> keras.Model:
    """Activations of 4 MB an example, and at most 24 MB of them at a time."""

    class Large(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.ops.mean(keras.ops.tanh(keras.ops.tile(x, (1, MB // 3))), axis=-1, keepdims=True)

    model = model_of(Large())
    model.compile("sgd", model.loss, jit_compile=False)
    return model


@pytest.mark.slow
def test_real_probes_find_what_fits(capsys):
    """8 examples fit into 256 MB, 64 do not."""
    model = large_model()
    accumulate(model, "auto", data=(X, Y), batch_size=64, memory_limit_mb=256)
    assert 2 <= model.train_step._steps <= 8
    out = capsys.readouterr().out
    assert "  yes\n" in out
    assert "  no\n" in out
    before = model.get_weights()
    model.fit(X[:4], Y[:4], batch_size=64, verbose=0)
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.slow
def test_micro_batches_of_two_sizes_are_not_in_memory_together(tmp_path):
    write_probe(large_model(), batch_of((X, Y), 31), tmp_path)
    whole, uneven = (
        probe_steps(tmp_path, steps, math.ceil(31 / steps), 1000, Declared()).peak_bytes for steps in (1, 2)
    )
    assert uneven < 0.75 * whole  # 16 and 15 examples beside 31
