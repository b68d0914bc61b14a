"""Dropout of published models: rates of config.json or of the key, and the same gradient for every split and policy."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode, example_draws
from accumtrain.errors import ConfigError
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.dropout import Dropout
from tests.models.published.folders import CLASSES, DECODERS, IMAGES, TEXTS, write_folder
from tests.models.published.loaded import draw_batch, gradients_of, load_model

HIDDEN = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
OF_BERT = {"embedding": 0.2, "shares": 0.3, "attention_output": 0.2, "output": 0.2, "dense": None, "logits": 0.2}
LORA = {"lora_rank": 2, "lora_dropout": 0.2}


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("bert", HIDDEN, OF_BERT),
        ("bert", HIDDEN | {"classifier_dropout": 0.4}, OF_BERT | {"logits": 0.4}),
        ("bert", HIDDEN | {"classifier_dropout": None}, OF_BERT),
        ("bert", {}, {place: rate and 0.1 for place, rate in OF_BERT.items()}),
        ("roberta", HIDDEN, OF_BERT | {"dense": 0.2}),
        ("xlm-roberta", HIDDEN | {"classifier_dropout": 0.4}, OF_BERT | {"dense": 0.4, "logits": 0.4}),
        (
            "distilbert",
            {"dropout": 0.2, "attention_dropout": 0.3, "seq_classif_dropout": 0.4},
            OF_BERT | {"attention_output": None, "logits": 0.4},
        ),
        ("vit", HIDDEN, OF_BERT | {"logits": None}),
        ("deit", {}, dict.fromkeys(OF_BERT, 0.0) | {"dense": None, "logits": None}),
        (
            "gpt2",
            {"embd_pdrop": 0.4, "attn_pdrop": 0.3, "resid_pdrop": 0.2},
            OF_BERT | {"embedding": 0.4, "logits": None},
        ),
        ("llama", {"attention_dropout": 0.3}, dict.fromkeys(OF_BERT) | {"shares": 0.3}),
        ("llama", {"attention_dropout": None}, dict.fromkeys(OF_BERT) | {"shares": 0.0}),
    ],
)
def test_the_rates_are_those_of_the_file_or_the_key(tmp_path, family, config, expected):
    path = str(write_folder(tmp_path / "folder", family, config=config))
    assert vars(PretrainedConfig(path=path).rates) == expected
    one = {place: None if rate is None else 0.7 for place, rate in expected.items()}
    assert vars(PretrainedConfig(path=path, dropout=0.7).rates) == one


def test_a_rate_of_1_in_the_file_is_refused(tmp_path):
    folder = write_folder(tmp_path / "folder", "bert", config={"hidden_dropout_prob": 1.0})
    with pytest.raises(ConfigError, match=r"config\.json: hidden_dropout_prob=1\.0: must be at least 0 and below 1"):
        PretrainedConfig(path=str(folder)).check()


@pytest.mark.parametrize(
    ("family", "places"),  # embedding, two of each block, and before the layers of the head
    [
        ("bert", 1 + 4 + 1),
        ("roberta", 1 + 4 + 2),
        ("distilbert", 1 + 2 + 1),
        ("vit", 1 + 4),
        ("gpt2", 1 + 4),
        ("llama", 0),
    ],
)
def test_every_layer_has_draws_of_its_own(tmp_path, family, places):
    folder = write_folder(tmp_path / "folder", family, head=CLASSES)
    model, _ = load_model(folder, dropout=0.1, **LORA)
    layers = [layer for layer in model.submodules if isinstance(layer, Dropout)]
    shares = [layer.dropout for layer in model.submodules if isinstance(layer, Attention)]
    of_adapters = [layer.dropout for layer in model.adapted]
    assert len(layers) - len(shares) - len(of_adapters) == places
    assert sorted(layer.number for layer in layers) == [*range(len(layers))]
    assert model.named.keys() == load_model(folder, lora_rank=2)[0].named.keys()


@pytest.mark.parametrize("family", [*TEXTS, *DECODERS, *IMAGES])
def test_an_evaluation_drops_nothing(tmp_path, family):
    folder, inputs = write_folder(tmp_path / "folder", family, head=CLASSES), draw_batch(family)["inputs"]
    dropping, _ = load_model(folder, dropout=0.5, **LORA)
    np.testing.assert_array_equal(dropping(inputs), load_model(folder)[0](inputs))
    mode = Mode(training=True, draws=example_draws(tf.constant([1, 2]), tf.constant(0), 1, 4))
    assert np.any(dropping(inputs) != dropping(inputs, mode))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("keys", [{}, LORA], ids=["full", "lora"])
def test_a_replay_draws_the_same(tmp_path, precision, keys):
    folder = write_folder(tmp_path / "bert", "bert", head=CLASSES)
    stored, again = (
        gradients_of(load_model(folder, precision, dropout=0.3, memory=memory, **keys)[0], draw_batch("bert"))
        for memory in ("store", "recompute")
    )
    assert all(np.array_equal(gradient, again[path]) for path, gradient in stored.items())


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.xla)])
@pytest.mark.parametrize("keys", [{}, LORA], ids=["full", "lora"])
def test_micro_batches_have_the_gradient_of_the_window(tmp_path, keys, xla):
    folder, batch = write_folder(tmp_path / "roberta", "roberta", head=CLASSES), draw_batch("roberta")
    model, _ = load_model(folder, dropout=0.3, **keys)
    whole = gradients_of(model, batch, xla=xla)
    for micro_steps in (2, 4):
        for path, gradient in gradients_of(model, batch, micro_steps, xla=xla).items():
            np.testing.assert_allclose(gradient, whole[path], rtol=1e-9, atol=1e-12)
