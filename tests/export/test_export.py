"""job=export: the place of the file, refusals, and a file that computes something else, which is not kept."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from accumtrain.config import check
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError, OutOfMemoryError, VerificationError
from accumtrain.export import compare, export, formats, reload
from accumtrain.export.config import QUANTIZED
from accumtrain.registry import with_kind
from accumtrain.runs.names import MARK
from accumtrain.tasks.config import LOSSES, LossConfig, LossEntry
from tests.train.conftest import assert_error

TRAINED = ("model=lenet5", "optim=sgd", "train.steps=2", "batch_size=16", "eval.every=2", "ema.decay=0.9")
EXPORT = ("job=export", "run.name=one")

old_interpreter = pytest.mark.filterwarnings(r"ignore:\s+Warning")  # it goes on in the package ai_edge_litert


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run(compose(f"run.dir={folder}", "run.name=one", *TRAINED))
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_a_process(monkeypatch):
    """Leave out the process that compares."""
    monkeypatch.setattr(compare, "largest_difference", lambda exported, path: 1e-7)


@pytest.fixture
def in_this_process(monkeypatch):
    """Compare without a process of its own."""

    def run_here(command, **_):
        reload.main(*command[2:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(compare.subprocess, "run", run_here)


def test_savedmodel(here, command):
    """Go the whole way, with the process that loads the file."""
    answer = command(*EXPORT)
    assert answer.code == 0, answer.err
    assert "uint8 [images, height, width, 1], pixels 0..255, any size; resized to 8 x 8" in answer.out
    result = json.loads((here / "runs/one/export.json").read_text())
    assert 0 <= result["largest_difference"] < 1e-5
    assert result["file"] == "runs/one/savedmodel"
    assert json.loads((here / "runs/one/savedmodel/assets/class_names.json").read_text()) == [*"0123456789"]
    assert not list((here / "runs/one").glob(".*savedmodel"))


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("export.format=savedmodel", "savedmodel_last"),
        ("export.format=onnx", "one_last.onnx"),
        ("export.quantize=int8", "one_last_int8.tflite"),
    ],
)
def test_exports_of_the_last_state_have_names_of_their_own(override, name, compose):
    config = compose("job=export", "run.name=one", "state=last", "export.format=tflite", override)
    assert export._find_path(config).name == name


@old_interpreter
def test_the_averages_are_exported(here, command, without_a_process):
    """The averages of ema.decay, as job=evaluate measures them."""
    assert command(*EXPORT, "export.format=tflite").code == 0
    assert command("job=predict", "run.name=one", f"predict.input={picture(here)}", "predict.top=10").code == 0
    (line,) = (here / "runs/one/predictions.jsonl").read_text().splitlines()
    predicted = {place["class"]: place["probability"] for place in json.loads(line)["top"]}
    serve = tf.lite.Interpreter(str(here / "runs/one/one.tflite")).get_signature_runner()
    images = tf.io.decode_png(picture(here).read_bytes(), channels=1)[None].numpy()
    (found,) = serve(images=images)["probabilities"].tolist()
    assert found == pytest.approx([predicted[name] for name in "0123456789"], abs=1e-6)


def picture(folder: Path) -> Path:
    file = folder / "picture.png"
    pixels = tf.random.stateless_uniform([20, 11, 1], [1, 2], 0, 256, tf.int32)
    file.write_bytes(tf.io.encode_png(tf.cast(pixels, tf.uint8)).numpy())
    return file


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        (("export.format=pickle",), ConfigError, "choose from savedmodel, keras, tflite, onnx"),
        (("export.format=keras",), ConfigError, "lenet5 is not made of Keras's own layers"),
        (("export.format=tflite", "export.output=mine.bin"), ConfigError, "must end in .tflite"),
        (("export.format=tflite", "export.output=folder.tflite"), ConfigError, "exists and is no tflite export"),
        (("export.output=mine",), ConfigError, "export.output=mine: exists and is no savedmodel export"),
        (("export.output=''",), ConfigError, "export.output is empty"),
        (("export.quantize=int8",), ConfigError, "export.format=savedmodel is written in float32 alone; choose"),
        (("export.format=tflite", "export.quantize=int4"), ConfigError, "did you mean int8?"),
        (("run.name=nobody",), CheckpointError, "train first"),
    ],
)
def test_mistakes(overrides, error, words, here, command):
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("years of work")
    (here / "folder.tflite").mkdir()
    assert_error(command(*EXPORT, *overrides), error, words)
    assert (here / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("job", ["export", "evaluate", "predict"])
def test_memory_that_runs_out_while_the_model_is_restored(here, command, monkeypatch, job):
    def refuse(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(tf.train.Checkpoint, "read", refuse)
    answer = command(f"job={job}", "run.name=one", f"predict.input={picture(here)}")
    assert_error(answer, OutOfMemoryError, "the device's memory is not enough for this run")


def test_a_package_that_is_missing_is_named_with_the_command(here, command, monkeypatch):
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    answer = command(*EXPORT, "export.format=onnx")
    assert_error(answer, ConfigError, "needs tf2onnx and onnxruntime; pip install 'accumtrain[onnx]'")


def test_the_middle_of_an_image_is_no_keras_layer(compose):
    config = compose("job=export", "export.format=keras", "model=keras", "model.name=MobileNet")
    check.check_export(config)
    config = replace(config, data=replace(config.data, augment="inception", image_size=32))
    with pytest.raises(ConfigError, match="no Keras layer cuts"):
        check.check_export(config)


def test_a_loss_without_classes(compose, monkeypatch):
    config = compose("job=export")
    entry = LossEntry(with_kind("regression", LossConfig), "accumtrain.tasks.classify:build_cross_entropy", metrics={})
    monkeypatch.setitem(LOSSES.entries, entry.name, entry)
    with pytest.raises(ConfigError, match="answers task=classify; loss=regression has no accuracy"):
        check.check_export(replace(config, loss=entry.config()))


def test_an_export_replaces_the_one_before(here, command, without_a_process):
    for _ in range(2):
        assert command(*EXPORT, "export.output=new/deep").code == 0
    assert (here / "new/deep/saved_model.pb").is_file()
    assert {path.name for path in (here / "new").iterdir()} == {"deep", MARK}


@old_interpreter
def test_an_export_that_computes_something_else_is_not_kept(here, command, in_this_process, monkeypatch):
    whole = formats.Exported.function

    def another(exported):
        exported.inputs.mean[0] += 0.5
        infer = whole(exported)
        infer.get_concrete_function()
        exported.inputs.mean[0] -= 0.5
        return infer

    monkeypatch.setitem(QUANTIZED, "none", 1e-5)
    assert command(*EXPORT, "export.format=tflite").code == 0
    before = (here / "runs/one/one.tflite").read_bytes()
    monkeypatch.setattr(formats.Exported, "function", another)
    answer = command(*EXPORT, "export.format=tflite")
    assert_error(answer, VerificationError, "from those of the run, more than 1e-05; nothing is kept")
    assert (here / "runs/one/one.tflite").read_bytes() == before
    assert not list((here / "runs/one").glob(".*tflite"))


@old_interpreter
@pytest.mark.parametrize(
    ("quantize", "share", "weights"),
    [("float16", 0.7, "float16\n"), ("int8", 0.5, "int8; those of fewer than 1,024 numbers float32\n")],
)
def test_weights_of_fewer_bits(here, command, in_this_process, quantize, share, weights):
    sizes, results = [], []
    for given in ("none", quantize):
        answer = command(*EXPORT, "export.format=tflite", f"export.quantize={given}")
        assert answer.code == 0, answer.err
        results.append(json.loads((here / "runs/one/export.json").read_text()))
        sizes.append(Path(results[-1]["file"]).stat().st_size)
    assert [result["file"] for result in results] == ["runs/one/one.tflite", f"runs/one/one_{quantize}.tflite"]
    assert [result["quantize"] for result in results] == ["none", quantize]
    assert sizes[1] < share * sizes[0]
    assert results[0]["largest_difference"] < 1e-6 < results[1]["largest_difference"] < QUANTIZED[quantize]
    assert weights in answer.out


@old_interpreter
def test_weights_that_lose_too_much_are_not_kept(here, command, in_this_process, monkeypatch):
    monkeypatch.setitem(QUANTIZED, "int8", 1e-7)
    answer = command(*EXPORT, "export.format=tflite", "export.quantize=int8")
    assert_error(answer, VerificationError, "export.quantize=int8: probabilities differ by")
    assert "more than 1e-07; nothing is kept: leave export.quantize out" in answer.err
    assert not list((here / "runs/one").glob("*.tflite"))


def test_a_process_that_fails_shows_why(here, command, monkeypatch):
    monkeypatch.setattr(compare, "PROGRAM", here / "nowhere.py")
    assert_error(command(*EXPORT, "export.format=tflite"), VerificationError, "nowhere.py")
    assert not list((here / "runs/one").glob("*.tflite"))
