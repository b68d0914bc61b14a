"""Models of published folders: numbers of a second implementation, tensors to the bit, and gradients of a tape."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.data.text.vocabulary import open_vocabulary
from accumtrain.errors import ConfigError
from accumtrain.measure.verify.imported import check_import
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.export import export_arrays
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from accumtrain.models.published.tensors import StoredArrays
from accumtrain.train.weights import start_from
from tests.models.published.folders import (
    CLASSES,
    DECODERS,
    IMAGES,
    LLAMA3,
    MASKED,
    NEXT,
    TEXTS,
    Sizes,
    draw_inputs,
    write_folder,
    write_tensors,
)

SIZES = Sizes()
HEADS = dict.fromkeys(TEXTS, (None, CLASSES, MASKED)) | dict.fromkeys(DECODERS, (None, CLASSES, NEXT))
EVERY = [(family, head) for family in (*TEXTS, *DECODERS, *IMAGES) for head in HEADS.get(family, (None, CLASSES))]
TOLD = {MASKED: "masked", NEXT: "next"}  # tokens, by the head
POSITIONS = np.int32([[0, 2, -1], [2, 1, 0], [6, -1, -1], [0, -1, -1]])  # of tokens, none of padding


def spec_of(family, precision, head=None):
    if family in IMAGES:
        return ModelSpec((SIZES.image, SIZES.image, 3), SIZES.labels, precision=precision)
    tokens = ("tokens",)
    told = TOLD.get(head)
    return ModelSpec((11,), SIZES.labels, precision=precision, inputs=tokens, vocabulary=60, tells=told)


def inputs_of(family, head=None):
    """Of four examples: images, tokens, tokens and their types, or tokens and the positions of masks."""
    given, types = draw_inputs(family)
    if family in IMAGES:
        return given
    tokens = np.int32(given)
    if head == MASKED:
        return {"tokens": tokens, "positions": POSITIONS}
    return tokens if types is None else {"tokens": tokens, "types": np.int32(types)}


def load(path, family, precision="float64", head=None, *, memory="store"):
    """The model of a folder with its weights, and what was loaded."""
    config = PretrainedConfig(path=str(path), memory=memory, dropout=0.0)
    model = build_model(config, spec_of(family, precision, head))
    stored = StoredTensors(Folder(path))
    stored.check_shapes(config.found)
    return model, start_from(model, StoredArrays(stored, model.tensors, config.found.prefix))


@pytest.mark.parametrize(("family", "head"), EVERY)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_states_and_logits_are_those_of_the_second_implementation(family, head, precision, tmp_path):
    path = write_folder(tmp_path / "model", family, head=head)
    model, started = load(path, family, precision, head)
    results = check_import(model.config, model, inputs_of(family, head), precision)
    assert len(results) == (1 if head is None else 2)
    assert all(result.passed for result in results), results
    assert bool(started.left) == (head is None), "the head alone is new"
    assert {name.rpartition(".")[0] for name in started.unused} <= {"pooler.dense"}, "which this head does not read"


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
        ("roberta", {"hidden_act": "relu", "type_vocab_size": 2}),
        ("distilbert", {"activation": "relu"}),
        ("vit", {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}),
        ("gpt2", {"activation_function": "relu", "layer_norm_epsilon": 1e-3}),
        ("llama", {"rope_parameters": LLAMA3, "rms_norm_eps": 1e-3}),
        ("llama", {"rope_parameters": None, "rope_theta": 30.0, "rope_scaling": None}),
        ("llama", {"rope_parameters": None, "rope_scaling": LLAMA3}),
        ("llama", {"head_dim": 10, "num_key_value_heads": 3}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_keys_of_the_file_count(family, config, tmp_path):
    path = write_folder(tmp_path / "model", family, head=CLASSES, config=config)
    model, _ = load(path, family)
    assert all(result.passed for result in check_import(model.config, model, inputs_of(family), "float64"))
    other, _ = load(write_folder(tmp_path / "other", family, head=CLASSES), family)
    differ = any(own.shape != each.shape for own, each in zip(model.variables, other.variables, strict=False))
    assert differ or not np.allclose(model(inputs_of(family)), other(inputs_of(family)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_numbers_of_other_types_are_read(dtype, tmp_path):
    path = write_folder(tmp_path / "model", "bert", head=CLASSES, dtype=dtype, shards=3)
    model, started = load(path, "bert")
    assert not started.left
    assert all(result.passed for result in check_import(model.config, model, inputs_of("bert"), "float64"))


def test_old_names_of_norms_are_read(tmp_path):
    path = write_folder(tmp_path / "model", "bert", head=CLASSES)
    before, _ = load(path, "bert")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    write_tensors(path, old)
    model, started = load(path, "bert")
    assert not started.left
    assert all(np.array_equal(model.named[name], value) for name, value in before.named.items())


@pytest.mark.parametrize(("family", "head"), [each for each in EVERY if each[1] is not None])
def test_tensors_go_out_as_they_came_in(family, head, tmp_path):
    path = write_folder(tmp_path / "model", family, head=head)
    model, _ = load(path, family, "float32", head)
    stored, arrays = load_file(path / "model.safetensors"), export_arrays(model)
    assert arrays.keys() == stored.keys()
    assert all(np.array_equal(array, stored[name]) and array.dtype == np.float32 for name, array in arrays.items())


@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", CLASSES), ("roberta", MASKED), ("distilbert", None), ("deit", CLASSES), ("gpt2", NEXT), ("llama", NEXT)],
)
@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_the_gradient_is_that_of_a_tape(family, head, memory, tmp_path):
    path = write_folder(tmp_path / "model", family, head=head)
    model, _ = load(path, family, head=head, memory=memory)
    inputs = tf.nest.map_structure(tf.constant, inputs_of(family, head))

    def loss(logits):
        shown = logits if head != MASKED else tf.boolean_mask(logits, POSITIONS >= 0)
        return tf.reduce_sum(tf.sin(shown))

    found = {variable.ref(): tf.zeros_like(variable) for variable in model.trainable_variables}

    def consume(gradients):
        for variable, gradient in gradients:
            if gradient is not None:
                found[variable.ref()] += tf.convert_to_tensor(gradient)

    tape.gradient(model, inputs, loss, Mode(training=True), consume)
    with tf.GradientTape() as plain:
        value = loss(model(inputs))
    expected = plain.gradient(value, model.trainable_variables, unconnected_gradients="zero")
    for variable, gradient in zip(model.trainable_variables, expected, strict=True):
        own, plain_one = found[variable.ref()], tf.convert_to_tensor(gradient)
        np.testing.assert_allclose(own, plain_one, rtol=1e-9, atol=1e-11, err_msg=variable.name)


def test_a_pair_has_types(tmp_path):
    path = write_folder(tmp_path / "model", "bert", head=CLASSES)
    model, _ = load(path, "bert")
    pairs = inputs_of("bert")
    tokens = pairs["tokens"]
    assert not np.allclose(model(pairs), model(tokens))
    assert np.array_equal(model({"tokens": tokens, "types": np.zeros_like(tokens)}), model(tokens))


@pytest.mark.parametrize(
    ("family", "spec", "message"),
    [
        ("bert", ModelSpec((41,), 3, inputs=("tokens",), vocabulary=60), "data.length=41: .* positions for 40 tokens"),
        ("roberta", ModelSpec((39,), 3, inputs=("tokens",), vocabulary=60), "give data.length=38 or less"),
        (
            "bert",
            ModelSpec((11,), 3, inputs=("tokens",), vocabulary=61),
            "vectors for 60 tokens, and those of the data are 61",
        ),
        ("vit", ModelSpec((32, 32, 3), 3), r"takes images of \[16, 16, 3\].*give data.image_size=16"),
        ("vit", ModelSpec((16, 16, 1), 3), "images of 3 channels"),
        ("vit", ModelSpec((11,), 3, inputs=("tokens",), vocabulary=60), "takes pixels"),
        ("bert", ModelSpec((16, 16, 3), 3), "takes tokens"),
    ],
)
def test_data_that_the_model_does_not_take_is_refused(family, spec, message, tmp_path):
    path = write_folder(tmp_path / "model", family, head=CLASSES)
    with pytest.raises(ConfigError, match=message):
        build_model(PretrainedConfig(path=str(path)), spec)


def test_longest_texts_are_taken(tmp_path):
    path = write_folder(tmp_path / "model", "roberta", head=CLASSES)
    spec = ModelSpec((38,), 3, inputs=("tokens",), vocabulary=60)
    assert build_model(PretrainedConfig(path=str(path)), spec)(np.zeros([1, 38], np.int32)).shape == (1, 3)


def test_the_architecture_is_enough_without_the_folder(tmp_path):
    path = write_folder(tmp_path / "model", "bert")
    content = json.loads((path / "config.json").read_text())
    alone = PretrainedConfig(path=str(Path("nowhere", "bert")), architecture=content)
    assert alone.found == PretrainedConfig(path=str(path)).found


def test_bytes_are_no_tokens_of_a_published_model(tmp_path):
    path, size = write_folder(tmp_path / "bert", "bert", vocabulary=300), open_vocabulary("bytes").size
    assert size < 300
    with pytest.raises(ConfigError, match=f"vectors for 300 tokens, and those of the data are {size}"):
        build_model(
            PretrainedConfig(path=str(path)), ModelSpec((11,), 3, inputs=("tokens",), vocabulary=size, of_bytes=True)
        )
