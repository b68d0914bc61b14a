"""What is of decoders alone: next tokens, packed rows, heads of their own, rotary positions, and what is refused."""

import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from accumtrain.data.text.vocabulary import open_vocabulary
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.measure.verify.imported import check_import
from accumtrain.measure.verify.published.decoders import DecoderReference
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.families.rope import read_frequencies
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from tests.models.published.folders import CLASSES, DECODERS, LLAMA3, NEXT, draw_inputs, write_folder, write_tensors
from tests.models.published.test_build import load, spec_of


def read(folder):
    """Check a folder as a run does at its beginning."""
    found = Folder(folder)
    StoredTensors(found).check_shapes(found.architecture)


def change_tensors(folder, change):
    write_tensors(folder, change(load_file(folder / "model.safetensors")))


@pytest.mark.parametrize("family", DECODERS)
def test_a_token_is_told_from_those_before_it_alone(family, tmp_path):
    model, _ = load(write_folder(tmp_path / "model", family, head=NEXT), family, head=NEXT)
    tokens = np.int32(draw_inputs(family)[0][:1])
    other = tokens.copy()
    other[0, 6] = 3 + (tokens[0, 6] - 2) % 50
    before, after = model(tokens).numpy(), model(other).numpy()
    assert np.array_equal(before[0, :6], after[0, :6])
    assert not np.any(np.all(before[0, 6:] == after[0, 6:], axis=-1))


@pytest.mark.parametrize("family", DECODERS)
def test_documents_of_a_packed_row_are_as_alone(family, tmp_path):
    folder = write_folder(tmp_path / "model", family, head=NEXT)
    model, _ = load(folder, family, head=NEXT)
    tokens, documents = np.int32(draw_inputs(family)[0][:1]), np.int32([[4] * 3 + [9] * 6 + [1] * 2])
    packed = model({"tokens": tf.constant(tokens), "documents": tf.constant(documents)}).numpy()
    for part in (slice(0, 3), slice(3, 9), slice(9, 11)):
        np.testing.assert_allclose(packed[:, part], model(tokens[:, part]), rtol=1e-9, atol=1e-12)
    reference = DecoderReference(folder)
    expected = reference.next_logits(reference.hidden_states(tokens, documents)[-1])
    np.testing.assert_allclose(packed, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_a_class_is_told_from_the_last_token(family, tmp_path):
    model, _ = load(write_folder(tmp_path / "model", family, head=CLASSES), family)
    tokens = np.int32(draw_inputs(family)[0])
    alone = [model(row[np.newaxis, row >= 0]).numpy()[0] for row in tokens]
    np.testing.assert_allclose(model(tokens), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", DECODERS)
def test_the_token_of_padding_tells_no_class(family, tmp_path):
    """As transformers has it, where a text ends with the token that is its padding, too."""
    model, _ = load(write_folder(tmp_path / "model", family, head=CLASSES, config={"pad_token_id": 2}), family)
    plain = np.int32([[5, 2, 7, 9, -1, -1], [2, 2, -1, -1, -1, -1]])
    ended = np.int32([[5, 2, 7, 9, 2, -1], [2, 2, 2, -1, -1, -1]])
    np.testing.assert_array_equal(model(plain), model(ended))
    inputs = {"tokens": ended}
    assert all(result.passed for result in check_import(model.config, model, inputs, "float64"))


@pytest.mark.parametrize(("family", "tied"), [("gpt2", True), ("gpt2", False), ("llama", True), ("llama", False)])
def test_a_head_is_that_of_the_file_or_the_table(family, tied, tmp_path):
    folder = write_folder(tmp_path / "model", family, head=NEXT, config={"tie_word_embeddings": tied})
    model, started = load(folder, family, head=NEXT)
    assert not started.left
    assert not started.unused
    names = [tensor.name for tensor in model.tensors.values()]
    assert names.count("lm_head.weight") == (not tied)
    frozen, _ = load_frozen(folder, family)
    assert not any("lm_head" in frozen.tensors[path].name for path in frozen.trainable_paths)


def load_frozen(folder, family):
    model = build_model(PretrainedConfig(path=str(folder), lora_rank=2), spec_of(family, "float32", NEXT))
    return model, {model.tensors[path].name for path in model.trainable_paths}


def test_adapters_alone_are_trained_to_tell_next_tokens(tmp_path):
    _, trained = load_frozen(write_folder(tmp_path / "model", "llama", head=NEXT), "llama")
    assert {name.rpartition(".lora_")[0].rpartition(".")[2] for name in trained} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("family", "told", "message"),
    [
        ("bert", "next", r"its tokens attend to the next ones, .*; use model=decoder_tiny, or task=masked_tokens"),
        ("gpt2", "masked", r"its tokens attend to none behind them, .*; use model=encoder_tiny"),
        ("llama", "masked", r"its tokens attend to none behind them, .*; use model=encoder_tiny"),
    ],
)
def test_tokens_that_a_model_can_not_tell_are_refused(family, told, message, tmp_path):
    config = PretrainedConfig(path=str(write_folder(tmp_path / "model", family)))
    with pytest.raises(ConfigError, match=message):
        build_model(config, ModelSpec((11,), 60, inputs=("tokens",), vocabulary=60, tells=told))


@pytest.mark.parametrize(("family", "framed"), [("gpt2", False), ("llama", True)])
def test_the_mask_that_a_tokenizer_lacks_needs_no_vector(family, framed, tmp_path):
    folder = write_folder(tmp_path / "model", family)
    vocabulary = open_vocabulary(str(folder))
    assert (vocabulary.size, vocabulary.adds_mask, vocabulary.framed) == (61, True, framed)
    spec = {"shape": (11,), "num_classes": 3, "inputs": ("tokens",), "vocabulary": vocabulary.size}
    build_model(PretrainedConfig(path=str(folder)), ModelSpec(**spec, adds_mask=True))
    with pytest.raises(ConfigError, match="vectors for 60 tokens, and those of the data are 61"):
        build_model(PretrainedConfig(path=str(folder)), ModelSpec(**spec))
    assert not open_vocabulary(str(write_folder(tmp_path / "roberta", "roberta"))).adds_mask


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx=true: this model",
        ),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=false"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=true"),
        ("gpt2", {"activation_function": "silu"}, "activation_function=silu: no such choice"),
        ("gpt2", {"n_head": 5}, "5 attention heads do not share 24 channels"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act=gelu: this model computes otherwise, and only silu is known"),
        ("llama", {"num_key_value_heads": 2}, "num_key_value_heads=2: each serves as many of num_attention_heads=3"),
        ("llama", {"head_dim": 7}, "heads of 7 channels: rotary positions turn pairs"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved=true"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)
def test_a_config_that_is_not_known_here_is_refused(family, config, message, tmp_path):
    folder = write_folder(tmp_path / "model", family)
    keys = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
        read(folder)


WITHOUT = {key: value for key, value in LLAMA3.items() if key != "factor"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            r"rope_scaling\.rope_type=linear: only default and",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters\.rope_type=yarn: only default and llama3"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, r"rope_type=\[yarn\]"),
        ({"rope_parameters": LLAMA3 | {"beta_fast": 32}}, r"rope_parameters\.beta_fast=32: is not known here"),
        ({"rope_parameters": {"factor": 2.0}}, r"rope_parameters\.factor=2\.0: is not known here of rope_type=default"),
        ({"rope_scaling": WITHOUT}, r"rope_scaling\.factor is missing"),
        ({"rope_scaling": LLAMA3 | {"factor": 0}}, r"rope_scaling\.factor=0\.0: must be above 0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor=4: must be below high_freq_factor=4"),
        ({"rope_scaling": LLAMA3 | {"partial_rotary_factor": 0.5}}, r"rope_scaling\.partial_rotary_factor=0\.5"),
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1.0}}, "rope_parameters tells the same"),
    ],
)
def test_positions_that_are_not_known_here_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        read_frequencies(keys, 8)


def test_long_waves_alone_are_slowed_down():
    keys = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    plain = np.array(read_frequencies({"rope_theta": 500.0}, 16))
    ratio = np.array(read_frequencies({"rope_theta": 500.0, "rope_scaling": keys}, 16)) / plain
    turns = 32 * plain / (2 * np.pi)
    np.testing.assert_allclose(ratio[turns > 4], 1.0)
    np.testing.assert_allclose(ratio[turns < 1], 1 / 8)
    assert np.all(np.diff(ratio) <= 0)
    assert np.any((ratio > 1 / 8) & (ratio < 1))
    assert read_frequencies({"rope_parameters": LLAMA3}, 16) == pytest.approx((ratio * plain).tolist(), rel=1e-14)


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("gpt2", {"n_inner": None}, r"c_fc\.weight .* is \[24, 40\], and config\.json describes \[24, 96\]"),
        ("gpt2", {"n_positions": 41}, r"wpe\.weight .* is \[40, 24\], .* \[41, 24\]"),
        ("gpt2", {"n_layer": 3}, r"no tensor transformer\.h\.2\.attn\.c_attn\.weight"),
        ("llama", {"num_key_value_heads": 3}, r"k_proj\.weight .* is \[8, 24\], and config\.json describes \[24, 24\]"),
        ("llama", {"head_dim": 4}, r"q_proj\.weight .* is \[24, 24\], and config\.json describes \[12, 24\]"),
        ("llama", {"intermediate_size": 41}, r"gate_proj\.weight .* describes \[41, 24\]"),
        (
            "llama",
            {"tie_word_embeddings": True},
            r"lm_head\.weight is not model\.embed_tokens\.weight, .*; set tie",
        ),
    ],
)
def test_files_that_disagree_with_the_config_are_refused(family, config, message, tmp_path):
    folder = write_folder(tmp_path / "model", family, head=NEXT)
    keys = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(keys))
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_a_head_of_other_tokens_is_refused(tmp_path):
    folder = write_folder(tmp_path / "model", "llama", head=NEXT)
    change_tensors(folder, lambda tensors: tensors | {"lm_head.weight": np.zeros([59, 24], np.float32)})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is \[59, 24\], and model\.embed_tokens\.weight \["):
        read(folder)


def test_a_tied_head_may_be_in_the_file(tmp_path):
    folder = write_folder(tmp_path / "model", "gpt2", head=NEXT)
    change_tensors(folder, lambda tensors: tensors | {"lm_head.weight": tensors["transformer.wte.weight"]})
    read(folder)


@pytest.mark.parametrize(
    ("family", "lost"),
    [("gpt2", "transformer.h.1.attn.c_attn.weight"), ("llama", "model.layers.0.self_attn.v_proj.weight")],
)
def test_a_tensor_that_is_missing_is_named(family, lost, tmp_path):
    folder = write_folder(tmp_path / "model", family, head=NEXT)
    change_tensors(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != lost})
    with pytest.raises(CheckpointError, match=f"no tensor {lost}"):
        read(folder)
