"""Runs that start from trained weights: what they load, what they say, and that they resume to the bit."""

import shutil
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.read import from_mapping
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.optim.keras_optimizer import update_rules
from accumtrain.runs.contents import read_config
from accumtrain.tasks.objective import open_objective
from accumtrain.train.trained.load import find_trained_on, trained_model
from accumtrain.train.weights import begin_with_weights, window_with_weights
from tests.engine.small import examples, train, window_for
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

LENET = ("model=lenet5", "batch_size=16", "accum.steps=2", "log.every=1", "train.steps=4", "schedule=constant")
HEAD = "segments/2/layers/0/layers/2"
FREEZE = "model.freeze=[segments/0/*]"
NET = {"alpha": 0.25, "input_shape": (32, 32, 3), "weights": None, "classifier_activation": None}


def best_of(folder):
    """The variables of a run's best state, averages in place, by path."""
    values = read_config(folder / "config.yaml")
    config = from_mapping({**values, "run": {**values["run"], "dir": str(folder.parent), "name": folder.name}})
    model = trained_model(config, *find_trained_on(config)).model
    return {path: variable.numpy() for path, variable in model.named.items()}


@pytest.fixture(scope="module")
def runs(compose, tmp_path_factory):
    """`base`, with averages."""
    folder = tmp_path_factory.mktemp("runs")
    run(compose(*LENET, f"run.dir={folder}", "run.name=base", "ema.decay=0.9"))
    return folder


@pytest.fixture
def config(compose, runs, tmp_path):
    def of(*more, weights=runs / "base"):
        return compose(*LENET, f"run.dir={tmp_path}", "run.name=one", f"model.weights={weights}", *more)

    return of


@pytest.fixture(scope="module", params=["m.weights.h5", "m.keras", "m.h5"])
def keras_file(request, tmp_path_factory):
    """A file with random weights, and the model that it was saved from, of 7 classes."""
    keras.utils.set_random_seed(5)
    model = keras.applications.MobileNet(**NET, classes=7)
    for variable in model.variables:
        variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    file = tmp_path_factory.mktemp("files") / request.param
    (model.save_weights if request.param.endswith("weights.h5") else model.save)(file)
    return file, model


@pytest.mark.slow
def test_a_run_starts_from_the_averages_of_another(config, runs, tmp_path, capsys):
    # the smallest rate that float32 holds, so that a bias of 0 stays 0
    run(config("train.steps=1", "optim=sgd", "optim.lr=1.2e-38", "optim.weight_decay=0", "ema.decay=0.5"))
    before, now = best_of(runs / "base"), best_of(tmp_path / "one")
    assert all(np.array_equal(now[path], value) for path, value in before.items())
    assert "10 of 10 variables loaded, 21,386 of 21,386 values" in capsys.readouterr().out


@pytest.mark.slow
def test_by_the_name_of_a_run(compose, runs):
    run(compose(*LENET, f"run.dir={runs}", "run.name=two", "model.weights=base", "train.steps=1"))
    assert json_of(runs / "two", "weights")["left"] == {}


@pytest.mark.slow
def test_another_number_of_classes_gets_a_new_head(config, tmp_path, capsys):
    run(config("data=synthetic", "data.image_size=8", "data.channels=1", "data.num_classes=3", "train.steps=1"))
    said = json_of(tmp_path / "one", "weights")
    assert said["left"] == {f"{HEAD}/bias": "[10] there, [3] here", f"{HEAD}/kernel": "[84,10] there, [84,3] here"}
    assert len(said["loaded"]) == 8
    assert "at their initial values" in capsys.readouterr().out


SYNTHETIC = ("data=synthetic", "data.num_classes=3", "train.steps=1")
MOBILENET = ("model=keras", "model.name=MobileNet", "model.args={alpha:0.25}")


def begun(config):
    """What a new model has of the weights of a file, and its variables."""
    model = window_for(config.model, config.optim, (32, 32, 3)).model
    return begin_with_weights(config, model), model.named


@pytest.mark.slow
def test_a_file_that_hardly_fits_is_refused(config, keras_file):
    """Some layers of other models have the same name and shape; the remedy is the model that the file is of."""
    file, _ = keras_file
    with pytest.raises(ConfigError, match=r"[0-9]+ of the 262 variables of MobileNetV2 are in it, fewer than 50%"):
        begun(config("model=keras", "model.name=MobileNetV2", "model.args={alpha:0.35}", weights=file))
    assert begun(config(*MOBILENET, weights=file))[0] is not None


@pytest.mark.slow
def test_what_is_frozen_has_weights(config, tmp_path):
    same = (*SYNTHETIC, "data.image_size=8", "data.channels=1")
    with pytest.raises(ConfigError, match=r"2 of the variables that are frozen") as refused:
        run(config(*same, "model.freeze=[segments/2/*]"))
    remedy = str(refused.value).rpartition(" ")[2]
    assert remedy == "model.freeze=[segments/2/*,-segments/2/layers/0/layers/2/*]"
    run(config(*same, remedy))
    assert json_of(tmp_path / "one", "weights")["left"].keys() == {f"{HEAD}/bias", f"{HEAD}/kernel"}


@pytest.mark.parametrize("memory", [pytest.param("store", marks=pytest.mark.slow), "recompute"])
def test_files_of_keras(config, keras_file, memory):
    file, model = keras_file
    started, named = begun(config(*MOBILENET, "optim=sgd", f"model.memory={memory}", weights=file))
    assert started.left == {
        "conv_preds/kernel": "[1,1,256,7] there, [1,1,256,10] here",
        "conv_preds/bias": "[7] there, [10] here",
    }
    assert started.unused == []
    expected = {variable.path: np.asarray(variable) for variable in model.variables}
    assert len(started.loaded) == 135
    assert all(np.array_equal(named[path].numpy(), expected[path]) for path in started.loaded)


def test_what_a_file_has_beyond_the_model_is_told(config, tmp_path):
    keras.utils.set_random_seed(5)
    model = keras.applications.MobileNet(**NET, classes=10)
    larger = keras.Sequential([*model.layers[:-1], keras.layers.Dense(3)])
    larger.build((None, 32, 32, 3))
    larger.save_weights(tmp_path / "l.weights.h5")
    started, _ = begun(config(*MOBILENET, weights=tmp_path / "l.weights.h5"))
    assert started.unused == ["layers/dense/vars/0", "layers/dense/vars/1"]


def updated(config, rate=1e-12):
    """Weights as loaded and after an update at a tiny rate, and the window."""
    optim = replace(config.optim, lr=rate)
    objective = open_objective(config)
    window, started = window_with_weights(replace(config, optim=optim), objective, 1, tf.distribute.get_strategy())
    assert not started.left
    loaded = [variable.numpy() for variable in window.variables_]
    train(window, [examples(4, (8, 8, 1))], 1)
    return loaded, [variable.numpy() for variable in window.variables_], window


@pytest.mark.slow
def test_slots_and_averages_begin_with_the_loaded_weights(config):
    """A slot that holds a copy of the weights holds those that were loaded."""
    loaded, after, _ = updated(config("optim=keras", "optim.name=ScheduleFreeAdamW"))  # not in Python 3.10's Keras
    for before, now in zip(loaded, after, strict=True):
        np.testing.assert_allclose(now, before, rtol=0, atol=1e-6)
    averaged, _, window = updated(config("ema.decay=0.9"))
    for before, average in zip(averaged, window.ema.averages, strict=True):
        np.testing.assert_allclose(average, before, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(update_rules()))
def test_every_optimizer_of_keras_goes_on_from_the_loaded_weights(config, name):
    if name == "Ftrl":  # w = -linear / quadratic, of the gradients alone
        with pytest.raises(ConfigError, match=r"Ftrl computes weights anew .* choose another optimizer"):
            config("optim=keras", "optim.name=Ftrl")
        assert config("optim=adam").model.weights
        return
    loaded, after, _ = updated(config("optim=keras", f"optim.name={name}"))
    assert max(np.abs(now - before).max() for before, now in zip(loaded, after, strict=True)) < 1e-6


@pytest.mark.slow
def test_resume_is_exact(config, compose, runs, tmp_path):
    """Two updates and two more end in the same bits as four, and the continued run does not load again."""
    run(config(FREEZE, "train.steps=2"))
    (tmp_path / "one/weights.json").unlink()
    run(config(FREEZE))
    assert not (tmp_path / "one/weights.json").exists()
    run(compose(*LENET, f"run.dir={tmp_path}", "run.name=whole", f"model.weights={runs / 'base'}", FREEZE))
    one, whole = (records_of(tmp_path / name, "train")[-1]["loss"] for name in ("one", "whole"))
    assert one == whole
    for part in ("model/", "optimizer/"):
        one, whole = (tensors_of(tmp_path / name / "checkpoints/step-4", part) for name in ("one", "whole"))
        assert len(whole) > 5
        assert_same_tensors(one, whole)


@pytest.mark.slow
def test_identity_is_the_content_and_not_the_path(config, runs, tmp_path):
    run(config("train.steps=1"))
    shutil.copytree(runs / "base", tmp_path / "elsewhere")
    run(config("train.steps=2", weights=tmp_path / "elsewhere"))
    with pytest.raises(CheckpointError, match="began with other weights"):
        run(config("train.steps=3", weights="null"))
    run(config("train.steps=1", "run.name=other", "run.seed=1", weights="null"))
    with pytest.raises(CheckpointError, match=r"began with other weights: model\.weights=crc32c"):
        run(config("train.steps=3", weights=tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"model\.freeze"):
        run(config("train.steps=3", FREEZE))


@pytest.mark.slow
def test_verify_passes_with_weights_and_frozen_layers(compose, tmp_path):
    here = ("model=lenet5", "batch_size=8", "accum.steps=2", f"run.dir={tmp_path}")
    run(compose(*here, "run.name=base", "train.steps=1"))
    freeze = "model.freeze=[segments/0/*,segments/1/*]"
    result = run(compose(*here, "run.name=v", "job=verify", f"model.weights={tmp_path / 'base'}", freeze))
    assert result["passed"]


@pytest.mark.parametrize(
    ("weights", "more", "said"),
    [
        ("nowhere", (), "neither a file, nor a run's folder, nor the name of a run"),
        ("{here}/one", (), "that is this run itself"),
        ("{here}/empty", (), "empty/checkpoints; train that run first"),
        ("{here}/m.weights.h5", (), "for model=keras; give a run for lenet5"),
        ("{base}", ("model=revnet38", "model.units=[1,1,1]"), "0 of the 72 variables of revnet14 are in it"),
        ("{here}/m.weights.h5", ("model=keras", "model.name=MobileNet", "data.image_size=32"), "can't be read"),
        ("{here}/m.keras", ("model=keras", "model.name=MobileNet", "data.image_size=32"), "can't be read"),
    ],
)
def test_refused(config, runs, tmp_path, weights, more, said):
    for name in ("one", "empty"):
        (tmp_path / name).mkdir()
        shutil.copy(runs / "base/config.yaml", tmp_path / name)
    (tmp_path / "m.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n damaged")
    (tmp_path / "m.keras").write_bytes(b"PK\x05\x06" + bytes(18))  # an archive that holds nothing
    data = ("data=synthetic",) if "data.image_size=32" in more else ()
    with pytest.raises((ConfigError, CheckpointError)) as refused:
        run(config(*data, *more, weights=weights.format(here=tmp_path, base=runs / "base")))
    assert said in str(refused.value)


@pytest.mark.slow
def test_evaluation_needs_the_weights_no_more(config, compose, tmp_path, runs):
    shutil.copytree(runs / "base", tmp_path / "gone")
    run(config("train.steps=1", weights=tmp_path / "gone"))
    shutil.rmtree(tmp_path / "gone")
    done = run(compose(*LENET, f"run.dir={tmp_path}", "run.name=one", "job=evaluate"))
    assert done["status"] == "completed"


# ---- transformers of tokens ----

ENCODER = ("model=encoder_tiny", "model.depth=1", "model.width=8", "model.heads=2", "batch_size=8", "train.steps=1")


@pytest.fixture
def encoder(compose, tmp_path):
    """Composes a run of 24 texts of 8 bytes, and has one, `base`, whose weights are not trained."""
    (tmp_path / "lines.txt").write_text("".join(f"text {number:03}\n" for number in range(24)))
    np.savez(tmp_path / "ids.npz", tokens=np.arange(24 * 8).reshape(24, 8))

    def of(name, data="lines.txt", *more):
        kind = "npz" if data.endswith(".npz") else "texts"
        where = (f"run.dir={tmp_path}", f"run.name={name}", "task=masked_tokens", f"data={kind}", "data.length=8")
        return compose(*ENCODER, *where, f"data.path={tmp_path / data}", *more)

    run(of("base"))
    return of


@pytest.mark.slow
def test_heads_of_another_number_are_refused(encoder):
    with pytest.raises(ConfigError, match=r"model\.heads=4: .*base names has 2, .*; give model\.heads=2"):
        run(encoder("one", "lines.txt", "model.weights=base", "model.heads=4"))


@pytest.mark.slow
def test_ids_of_another_tokenizer_are_told(encoder, capsys):
    run(encoder("one", "lines.txt", "model.weights=base"))
    assert "was trained on" not in capsys.readouterr().err
    run(encoder("two", "ids.npz", "data.vocabulary=256", "model.weights=base"))
    assert "base was trained on bytes, and this run has ids of no tokenizer" in capsys.readouterr().err
