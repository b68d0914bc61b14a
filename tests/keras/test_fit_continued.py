"""accumtrain.fit: runs that are continued, job=verify, and the data it takes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import CheckpointError, ConfigError, DataError, Preempted
from tests.keras.cases import CASES, CROSS_ENTROPY, OPTIMIZERS, UPDATES, Numbers, compiled, data_of, mlp, pair, run
from tests.keras.gradients import unchanged
from tests.keras.programs import ENVIRONMENT
from tests.keras.whole_batch_losses import Contrast

pytestmark = pytest.mark.usefixtures("empty_folder")


def with_dropout() -> keras.Model:
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(4)], name="net")


@pytest.mark.slow
def test_a_continued_run_has_the_same_bits() -> None:
    whole, begun = pair(with_dropout, optimizer=OPTIMIZERS["adamw"], loss=CROSS_ENTROPY)
    _, continued = pair(with_dropout, optimizer=OPTIMIZERS["adamw"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(whole, data, updates=6, run_name="whole")
    begun.name, continued.name = "begun", "continued"  # as names are in a notebook
    run(begun, data, updates=3, run_name="parts")
    run(continued, data, updates=6, run_name="parts")
    states = ([*model.variables, *model.optimizer.variables] for model in (whole, continued))
    same = zip(*states, strict=True)
    assert [a.path for a, b in same if a.name != "seed_generator_state" and not np.array_equal(a, b)] == []


@pytest.mark.slow
def test_so_has_a_run_with_a_loss_of_the_whole_batch() -> None:
    """And another kind of loss does not continue it."""
    models = pair(CASES["mlp"].build, optimizer=OPTIMIZERS["adam"], loss=Contrast())
    data = data_of(CASES["mlp"])
    for model, counts in zip(models, ([3, 6], [6]), strict=True):
        for updates in counts:
            run(model, data, updates, run_name=f"in{len(counts)}")
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ConfigError, match=r'begun with loss="batch", .* "mean": say loss="batch" to go'):
        run(models[0], data, 9, run_name="in2", loss="mean")


def test_a_run_of_before_goes_on_with_the_word_that_the_message_names() -> None:
    """It was begun with a mean that had been found by trying."""
    model, _ = pair(mlp, optimizer=OPTIMIZERS["adam"], loss=lambda y, p: CROSS_ENTROPY(y, p))
    data = data_of(CASES["mlp"])
    run(model, data, 2, run_name="before", loss="mean")
    with pytest.raises(ConfigError, match=r'was begun with loss="mean".*: say loss="mean" to go on with it'):
        run(model, data, 4, run_name="before")
    assert run(model, data, 4, run_name="before", loss="mean")["step"] == 4


def test_a_run_that_is_stopped_is_saved() -> None:
    model, again = pair(with_dropout, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    with pytest.raises(Preempted, match="its state is saved in runs/net"):
        run(model, data, settings={"run.walltime": "0:00:01"})
    assert run(again, data)["step"] == UPDATES


def test_a_model_whose_run_can_not_be_read_stays_as_it_is(monkeypatch) -> None:
    def fail(*_):
        raise tf.errors.UnknownError(None, None, "the disk is gone")

    model, _ = pair(with_dropout, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(model, data, run_name="mine")
    with monkeypatch.context() as patched, unchanged((*model.variables, *model.optimizer.variables)):
        patched.setattr(tf.train.Checkpoint, "read", fail)
        with pytest.raises(CheckpointError, match="the disk is gone"):
            run(model, data, run_name="mine")
    assert run(model, data, updates=UPDATES + 1, run_name="mine")["step"] == UPDATES + 1


def test_another_model_optimizer_or_data_does_not_continue_the_run() -> None:
    model, _ = pair(mlp, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(model, data, run_name="mine")
    model.optimizer.learning_rate = 0.5
    with pytest.raises(ConfigError, match=r"learns something else: optim.args"):
        run(model, data, run_name="mine")
    model.optimizer.learning_rate = 1e-2
    model.layers[0].activation = keras.activations.sigmoid
    with pytest.raises(ConfigError, match=r"learns something else: model.layers"):
        run(model, data, run_name="mine")
    model.layers[0].activation = keras.activations.tanh
    with pytest.raises(DataError, match=r"data.train.arrays"):
        run(model, (data[0] + 1, data[1]), run_name="mine")


PROGRAM = """
import sys
import keras, numpy as np
import accumtrain

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)], name="net")
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 6))
settings = {"train.steps": int(sys.argv[2]), "log.every": 1, "checkpoint.every": 1000000, "eval.every": 1000000}
accumtrain.fit(model, (x, x[:, :1]), batch_size=16, steps=2, run_name=sys.argv[1], settings=settings)
np.savez(sys.argv[1], *model.get_weights())
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_program_continues_with_the_same_bits(stop: signal.Signals, tmp_path: Path) -> None:
    metrics = tmp_path / "runs" / "stopped" / "metrics.jsonl"
    stopped = start(tmp_path, "stopped", "1000000")
    try:
        while not (metrics.exists() and metrics.read_text().count("\n") > 3) and stopped.poll() is None:
            time.sleep(0.05)
        stopped.send_signal(stop)
        output, errors = stopped.communicate(timeout=120)
    finally:
        stopped.kill()
    assert stopped.returncode == 75, errors.decode()[-2000:]
    assert b"Traceback" not in errors
    assert b"its state is saved in runs/stopped" in output
    done = json.loads((tmp_path / "runs" / "stopped" / "summary.json").read_text())["step"]
    for name in ("stopped", "whole"):
        with start(tmp_path, name, str(done + 5)) as again:
            _, errors = again.communicate(timeout=120)
        assert again.returncode == 0, errors.decode()[-2000:]
    parts, whole = (np.load(tmp_path / f"{name}.npz") for name in ("stopped", "whole"))
    assert whole.files == parts.files
    assert all(np.array_equal(whole[name], parts[name]) for name in whole.files)


@pytest.mark.parametrize("loss", [None, "batch"])
def test_verify_checks_and_leaves_the_model_as_it_is(loss: str | None) -> None:
    case = CASES["cnn"]
    model, _ = pair(case.build, optimizer=OPTIMIZERS["adam"], loss=case.losses)
    with unchanged(model.variables):
        assert run(model, data_of(case), job="verify", loss=loss)["passed"]
    assert int(model.optimizer.iterations.numpy()) == 0


@pytest.mark.slow
def test_several_updates_in_one_call_have_the_same_bits() -> None:
    """Fused or not, a tanh has other last bits."""
    weights = []
    for every in (1, 1000):
        model, _ = pair(mlp, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
        run(model, data_of(CASES["mlp"]), 100, run_name=f"every-{every}", settings={"log.every": every})
        weights.append(model.get_weights())
    assert all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.slow
def test_splits() -> None:
    model = compiled(lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(4)], name="numbers"))
    summary = run(model, Numbers(), batch_size=16)
    expected = model.evaluate(*Numbers().read(tf.range(64)), verbose=0)
    assert summary["val"]["loss"] == pytest.approx(expected, rel=1e-5)


def test_text() -> None:
    """Given as an array and as a data set."""
    words = keras.layers.TextVectorization(output_sequence_length=4, vocabulary=["a", "b", "c"])
    x, y = np.array(["a b", "c d", "b b b", "\u00e9"] * 8), np.arange(32) % 4
    for data in ((x, y), tf.data.Dataset.from_tensor_slices((x, y))):
        embedded = [words, keras.layers.Embedding(6, 4), keras.layers.Flatten(), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((), dtype="string"), *embedded])
        model.compile("adam", CROSS_ENTROPY)
        assert run(model, data, run_name=model.name)["step"] == UPDATES


def test_moving_statistics_with_a_momentum_of_one_stay() -> None:
    norm = keras.layers.BatchNormalization(momentum=1.0)
    run(compiled(lambda: keras.Sequential([keras.Input((6,)), norm, keras.layers.Dense(4)])), data_of(CASES["mlp"]))
    np.testing.assert_array_equal(norm.moving_mean, 0.0)
    np.testing.assert_array_equal(norm.moving_variance, 1.0)
