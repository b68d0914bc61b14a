"""Every kind of inputs: its facts make it again, an export takes what an evaluation takes, all doors open the same."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from accumtrain.config.registries import register_inputs
from accumtrain.data.config import DataConfig, DigitsConfig, FolderConfig, TextsConfig
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.inputs.scenes import Scenes
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.inputs.trained_on import TrainedOn, read_trained_on
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.sources.config import INPUTS
from accumtrain.data.text.vocabulary import open_vocabulary
from accumtrain.errors import ConfigError, DataError
from accumtrain.registry import load

BYTES = open_vocabulary("bytes")
EXAMPLES = {
    "pixels": Pixels((9, 10, 3), "none", (9, 10), [0.4, 0.5, 0.6], [0.25], 255, magnitude=9.0),
    "scenes": Scenes((9, 10, 3), "none", None, [0.4, 0.5, 0.6], [0.25], 255),
    "tokens": Tokens((12,), BYTES),
    "masked tokens": Tokens((12,), BYTES, masks=3),
    "continued tokens": Tokens((12,), BYTES, continues=True),
    "pairs of tokens": Tokens((12,), BYTES, pairs=True, column="text"),
    "arrays": Arrays((4, 2)),
}
KEYS = {
    "pixels": DigitsConfig(mean=[0.4, 0.5, 0.6], std=[0.25]),
    "scenes": FolderConfig(path="", mean=[0.4, 0.5, 0.6], std=[0.25]),
}
of_every_kind = pytest.mark.parametrize("name", EXAMPLES)


def keys_of(name: str) -> DataConfig:
    return KEYS.get(name, TextsConfig(path=""))


def model_takes(data):
    return next(iter(make_eval_batches(data, batch=data.test.size)))["inputs"]


def assert_same(found, expected, tolerance=0.0):
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance), found, expected)


def test_every_kind_is_tried():
    assert {each.kind for each in EXAMPLES.values()} == set(INPUTS.names), f"each kind needs EXAMPLES in {__file__}"
    assert {load(entry.build).kind for entry in INPUTS} == set(INPUTS.names)


@of_every_kind
def test_a_run_keeps_it(name, tmp_path):
    noted = TrainedOn(EXAMPLES[name], "classes", ["a", "b"], {"mean": 1.5})
    (tmp_path / "inputs.json").write_text(json.dumps(noted.as_json()))
    assert read_trained_on(tmp_path, keys_of(name)) == noted


@of_every_kind
def test_an_export_prepares_as_an_evaluation_does(name):
    inputs = EXAMPLES[name]
    for sample in inputs.samples():
        assert inputs.signature.shape.is_compatible_with(sample.shape)
        assert inputs.signature.dtype == sample.dtype
        served = tf.function(inputs.serve, input_signature=[inputs.signature], autograph=False)(tf.constant(sample))
        assert_same(served, inputs.prepare(sample), 2e-5)


@of_every_kind
def test_a_batch_has_the_shape_that_is_described(name):
    inputs, (sample, *_) = EXAMPLES[name], EXAMPLES[name].samples()
    if name == "masked tokens":
        sample[:, 0] = BYTES.mask
    found = model_takes(inputs.open_array(sample % 17 if name == "pixels" else sample, keys_of(name)))
    first = found["tokens"] if isinstance(found, dict) else found
    assert first.shape == [len(sample), *inputs.shape]
    assert inputs.describe().startswith(" x ".join(map(str, inputs.shape)))


@of_every_kind
def test_an_array_of_another_shape_is_refused(name):
    with pytest.raises(DataError, match="give"):
        EXAMPLES[name].open_array(np.zeros([3, 5, 7], np.float32), keys_of(name))


def test_a_file_and_an_array_are_the_same_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, [2, 9, 10, 3], np.uint8)
    names = [str(tmp_path / f"{number}.png") for number in range(2)]
    for name, image in zip(names, pixels, strict=True):
        Image.fromarray(image).save(name)
    asked = EXAMPLES["pixels"].open_named(names, keys_of("pixels"), "predict.input")
    assert asked.names == names
    as_floats = EXAMPLES["pixels"].open_array(pixels / np.float32(255), keys_of("pixels"))
    assert_same(model_takes(asked.data), model_takes(as_floats), 1e-6)


@pytest.mark.parametrize("name", ["tokens", "masked tokens"])
def test_a_file_and_an_array_are_the_same_tokens(name, tmp_path):
    (tmp_path / "texts.txt").write_text("a [MASK]\n")
    asked = EXAMPLES[name].open_named([str(tmp_path / "texts.txt")], keys_of(name), "predict.input")
    ids = [97, 32, BYTES.mask] if name == "masked tokens" else list(b"a [MASK]")
    row = np.array([ids + [-1] * (12 - len(ids))], np.int32)
    assert_same(model_takes(asked.data), model_takes(EXAMPLES[name].open_array(row, keys_of(name))))


def test_several_files_are_read_in_their_order(tmp_path):
    for name, text in (("b", "one\ntwo\n"), ("a", "three\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    named = [str(tmp_path / f"{name}.txt") for name in "ba"]
    asked = EXAMPLES["tokens"].open_named(named, keys_of("tokens"), "predict.input")
    assert [name.rpartition("/")[2] for name in asked.names] == ["b.txt, line 1", "b.txt, line 2", "a.txt, line 1"]
    assert [bytes(row[row >= 0].tolist()) for row in model_takes(asked.data).numpy()] == [b"one", b"two", b"three"]


def test_texts_show_how_they_begin_and_images_do_not(tmp_path):
    (tmp_path / "texts.txt").write_text("one  two\na long text of many words, longer than a table shows\n")
    inputs = replace(EXAMPLES["tokens"], shape=(200,))
    texts = inputs.open_named([str(tmp_path / "texts.txt")], keys_of("tokens"), "predict.input").data.splits["test"]
    assert inputs.beginnings(texts, [1, 0]) == ["a long text of many words, longer...", "one two"]
    assert EXAMPLES["pixels"].beginnings(texts, [0]) == []


def test_arrays_are_not_read_from_files():
    with pytest.raises(ConfigError, match=r"predict\.input=a\.csv: .* give arrays to accumtrain\.load_run"):
        EXAMPLES["arrays"].open_named(["a.csv"], keys_of("arrays"), "predict.input")


def test_a_kind_from_outside_is_opened_again(tmp_path, monkeypatch):
    monkeypatch.setattr(INPUTS, "entries", dict(INPUTS.entries))

    @register_inputs
    class Declared(Arrays):
        kind = "declared"

    noted = TrainedOn(Declared((4,)), "classes", ["a", "b"])
    (tmp_path / "inputs.json").write_text(json.dumps(noted.as_json()))
    assert read_trained_on(tmp_path, keys_of("arrays")) == noted
    INPUTS.entries.pop("declared")
    with pytest.raises(ConfigError, match=r"inputs=declared: no such inputs"):
        read_trained_on(tmp_path, keys_of("arrays"))
    with pytest.raises(ValueError, match=r"inputs=arrays is declared already"):
        register_inputs(Arrays)
