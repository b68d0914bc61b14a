"""Backbones of KerasHub: their weights, inputs and pooling, and the presets that are refused."""

from __future__ import annotations

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.keras.config import KerasHubConfig
from accumtrain.models.keras.hub_folder import PresetFolder
from accumtrain.models.layers import ModelSpec
from accumtrain.train.first_weights import HubPreset
from accumtrain.train.weights import start_from
from tests.models.published.folders import draw_inputs, write_folder
from tests.models.published.loaded import CLASSES, load_model

keras_hub = pytest.importorskip("keras_hub")
LENGTH, WORDS = 11, 60
HEAD = ("logits/kernel", "logits/bias")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder whose activation is the one that KerasHub has."""
    return write_folder(tmp_path_factory.mktemp("folder") / "bert", "bert", config={"hidden_act": "gelu_new"})


def build(preset, spec=None, **keys):
    config = KerasHubConfig(preset=str(preset), **{"args": {"dropout": 0.0}, **keys})
    if spec is None:
        spec = ModelSpec((LENGTH,), CLASSES, seed=1, inputs=("tokens",), vocabulary=WORDS)
    return config, build_model(config, spec)


def load(preset, spec=None, **keys):
    config, model = build(preset, spec, **keys)
    return model, start_from(model, HubPreset(None, config).read(None))


def test_a_bert_is_that_of_its_folder(bert):
    """Beside the same folder as model=pretrained, with one head."""
    model, started = load(bert)
    assert set(started.left) == set(HEAD)
    own, _ = load_model(bert, "float32")
    head = own.segments[-1].layers[0].logits
    for path, mine in zip(HEAD, (head.kernel, head.bias), strict=True):
        model.named[path].assign(mine)
    tokens, types = draw_inputs("bert")
    inputs = {"tokens": tf.constant(tokens, tf.int32), "types": tf.constant(types, tf.int32)}
    assert model(inputs).numpy() == pytest.approx(own(inputs).numpy(), abs=2e-5)
    one_type = {**inputs, "types": tf.zeros_like(inputs["types"])}
    assert np.array_equal(model(inputs["tokens"]), model(one_type))


@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_a_preset_of_kerashub(memory, tmp_path):
    """A decoder without a pooled output: the mean over the tokens is its own."""
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": LENGTH}
    backbone = keras_hub.models.GPT2Backbone(WORDS, **sizes)
    backbone.save_to_preset(str(tmp_path / "gpt2"))
    model, started = load(tmp_path / "gpt2", memory=memory)
    assert set(started.left) == set(HEAD)
    assert len(model.segments) == (1 if memory == "store" else 4)
    tokens = draw_inputs("bert")[0]
    present = tokens >= 0
    states = np.array(backbone({"token_ids": np.maximum(tokens, 0), "padding_mask": present.astype(int)}))
    mean = (states * present[..., None]).sum(1) / present.sum(1, keepdims=True)
    kernel, bias = (model.named[path].numpy() for path in HEAD)
    assert model(tf.constant(tokens, tf.int32)).numpy() == pytest.approx(mean @ kernel + bias, abs=1e-5)


def test_a_preset_of_images(tmp_path):
    keras.utils.set_random_seed(3)
    backbone = keras_hub.models.ViTBackbone((16, 16, 3), 8, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16)
    backbone.save_to_preset(str(tmp_path / "vit"))
    spec = ModelSpec((16, 16, 3), CLASSES)
    model, started = load(tmp_path / "vit", spec, args={})
    assert set(started.left) == set(HEAD)
    images = tf.random.stateless_normal((2, 16, 16, 3), [1, 2])
    kernel, bias = (model.named[path].numpy() for path in HEAD)
    mean = np.array(backbone(images)).mean(1)
    assert model(images).numpy() == pytest.approx(mean @ kernel + bias, abs=1e-5)


def test_the_pixels_of_a_converter(tmp_path):
    """KerasHub has 255 x scale + offset, in which x is from 0 to 1."""
    scale, offset = [0.01, 0.02], [-1.0, -2.0]
    (tmp_path / "config.json").write_text(json.dumps({"registered_name": "keras_hub>ResNetBackbone", "config": {}}))
    (tmp_path / "image_converter.json").write_text(json.dumps({"config": {"scale": scale, "offset": offset}}))
    keys = PresetFolder(tmp_path).list_data_keys(())
    pixels = np.array([0.1, 0.7])
    ours = (pixels - keys["mean"]) / keys["std"]
    assert ours == pytest.approx(255 * pixels * scale + offset)


def test_a_scale_of_all_channels(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"registered_name": "keras_hub>ResNetBackbone", "config": {}}))
    (tmp_path / "image_converter.json").write_text(json.dumps({"config": {"scale": 0.01, "offset": [1.0, 2.0, 3.0]}}))
    assert [len(value) for value in PresetFolder(tmp_path).list_data_keys(()).values()] == [3, 3]
    (tmp_path / "image_converter.json").write_text(json.dumps({"config": {"scale": [1, 2], "offset": [1, 2, 3]}}))
    with pytest.raises(ConfigError, match="has 2 scales and 3 offsets"):
        PresetFolder(tmp_path).list_data_keys(())


def test_what_is_refused(bert, tmp_path):
    def refuse(text, preset=bert, **spec):
        sizes = {"shape": (LENGTH,), "num_classes": 2, "inputs": ("tokens",), "vocabulary": WORDS} | spec
        with pytest.raises(ConfigError, match=text):
            build(preset, ModelSpec(**sizes))

    refuse("give data.length=40 or less", shape=(41,))
    refuse("vectors for 60 tokens, and those of the data are 61", vocabulary=61)
    refuse("takes tokens, and an example of the data is pixels", shape=(8, 8, 3), inputs=("pixels",))
    refuse("have no head for tokens here", tells="masked")
    refuse("neither a folder nor a handle that KerasHub knows; give one of these", preset=tmp_path / "nowhere")
    refuse(f"did you mean {bert}", preset=bert.with_name("brt"))
    with pytest.raises(ConfigError, match="BertBackbone has no width; leave it out"):
        build(bert, args={"width": 3})


def test_bytes_are_no_tokens_of_a_large_vocabulary(tmp_path):
    """The default of data.tokenizer, where a folder tells none."""
    large = write_folder(tmp_path / "bert", "bert", vocabulary=300)
    with pytest.raises(ConfigError, match=r"give data\.tokenizer the folder or the tokenizer\.json of that model"):
        build(large, ModelSpec((LENGTH,), 2, inputs=("tokens",), vocabulary=257, of_bytes=True))


@pytest.mark.slow
def test_a_run_needs_its_folder_no_more(command, bert, tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(bert, folder)
    rows = "".join(f"{'the cat sat' if number % 2 else 'abc'},{'ab'[number % 2]}\n" for number in range(40))
    (tmp_path / "texts.csv").write_text(f"text,kind\n{rows}")
    run = (f"run.dir={tmp_path / 'runs'}", "run.name=one")
    data = ("data=table", f"data.path={tmp_path / 'texts.csv'}", "data.text_column=text", "data.length=12")
    given = ("model=kerashub", f"model.preset={folder}", "train.steps=2", "batch_size=4", "optim=adamw")
    assert command(*run, *data, *given).code == 0
    shutil.rmtree(folder)
    assert command(*run, "job=predict", f"predict.input={tmp_path / 'texts.csv'}").code == 0
