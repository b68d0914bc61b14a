"""LoRA: adapters begin as nothing, learn what their formula says, and merge; all but them and the head is frozen."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.measure.flops import count_flops
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.export import export_arrays
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from accumtrain.optim.config import SgdConfig
from accumtrain.train.build import build_optimizer
from accumtrain.train.weights import begin_with_weights
from tests.engine.small import train
from tests.models.published.folders import CLASSES, DECODERS, IMAGES, MASKED, TEXTS, Sizes, write_folder
from tests.models.published.loaded import draw_batch, gradients_of, load_model

RATE = 0.5
EVERY = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
SPEC = ModelSpec((2, 11), 3, inputs=("tokens",))
WIDTH, HIDDEN, DEPTH = Sizes.width, Sizes.hidden, Sizes.depth


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("folders") / "bert", "bert", head=CLASSES)


def draw_adapters(model, seed=0):
    """Make the adapters those of a training."""
    random = np.random.default_rng(seed)
    for layer in model.adapted:
        layer.kernel_b.assign(random.normal(size=layer.kernel_b.shape, scale=0.3))


def window_of(model):
    return Window(model, build_optimizer(SgdConfig(lr=RATE, momentum=0.0, weight_decay=0.0)), seed=3)


def relative(actual, expected):
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("family", [*TEXTS, *DECODERS, *IMAGES])
def test_a_model_begins_with_the_logits_of_its_base(tmp_path, family):
    folder, inputs = write_folder(tmp_path / "folder", family, head=CLASSES), draw_batch(family)["inputs"]
    (base, _), (model, started) = load_model(folder), load_model(folder, lora_rank=4)
    layers = 1 if family == "gpt2" else 2  # its queries and values are of one layer
    assert len(model.adapted) == layers * DEPTH
    np.testing.assert_array_equal(model(inputs), base(inputs))
    assert set(started.left) == set(model.added)
    assert len(model.added) == 2 * layers * DEPTH


def test_what_is_trained_are_adapters_and_the_head(bert):
    model, _ = load_model(bert, lora_rank=2)
    trained = {model.tensors[path].name for path in model.trainable_paths}
    layers = [
        f"bert.encoder.layer.{place}.attention.self.{name}" for place in range(DEPTH) for name in ("query", "value")
    ]
    adapters = {f"{layer}.lora_{which}.weight" for layer in layers for which in "AB"}
    assert trained == adapters | {"classifier.weight", "classifier.bias"}
    window = Window(model, build_optimizer(SgdConfig()))
    assert len(window.gradients) == len(window.optimizer.state) == len(trained)


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        (["query"], DEPTH),
        (["attention.output.dense"], DEPTH),
        (["dense"], 3 * DEPTH + 1),  # the pooler, too
        (["layer.1.*"], 6),
        (["bert.encoder.layer.0.attention.self.key", "layer.*.self.key"], DEPTH),
        ([], 2 * DEPTH),
    ],
)
def test_targets_are_endings_of_names_or_patterns(bert, targets, count):
    assert len(load_model(bert, lora_rank=1, lora_targets=targets)[0].adapted) == count


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"lora_rank": 2, "lora_targets": ["q_lin"]},
            r"model\.lora_targets=q_lin: no linear layer .* they end in query, key, value, dense \(",
        ),
        ({"lora_rank": 25}, r"model\.lora_rank=25: no matrix of bert has a higher rank than 24; give no more"),
        ({"lora_alpha": 16.0}, r"model\.lora_alpha=16\.0: there are no adapters; give model\.lora_rank, such as"),
        ({"lora_targets": ["key"]}, r"model\.lora_targets=\[key\]: there are no adapters"),
        ({"lora_dropout": 0.1}, r"model\.lora_dropout=0\.1: there are no adapters"),
    ],
)
def test_what_can_not_be_is_refused(bert, keys, message):
    with pytest.raises(ConfigError, match=message):
        PretrainedConfig(path=str(bert), **keys).check()


@pytest.mark.parametrize("alpha", [4.0, 24.0])
def test_an_update_of_full_rank_is_that_of_the_full_gradient(bert, alpha):
    """By SGD: W - rate * s^2 * A A' G, and W - rate * G, as in fine-tuning, if A is orthogonal and s is 1."""
    batch = draw_batch("bert")
    full, _ = load_model(bert)
    before = export_arrays(full)
    train(window_of(full), [batch], micro_steps=1)
    after = export_arrays(full)
    model, _ = load_model(bert, lora_rank=WIDTH, lora_alpha=alpha, lora_targets=EVERY)
    random, scale, expected = np.random.default_rng(0), alpha / WIDTH, {}
    names = {id(variable): model.tensors[path].name for path, variable in model.named.items()}
    for layer in model.adapted:
        name, (inputs, _) = names[id(layer.kernel)], layer.kernel.shape
        if inputs == WIDTH:
            layer.kernel_a.assign(np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0])
        step = (after[name] - before[name]) @ layer.kernel_a.numpy() @ layer.kernel_a.numpy().T
        expected[name] = before[name] + scale**2 * step
        if inputs == WIDTH and scale == 1:
            assert relative(step, after[name] - before[name]) < 1e-12
    train(window_of(model), [batch], micro_steps=1)
    found = export_arrays(model)
    assert set(found) == set(after)
    for name, array in found.items():
        wanted = expected.get(name, (after if name.startswith("classifier") else before)[name])
        np.testing.assert_allclose(array - before[name], wanted - before[name], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("family", [*TEXTS, *DECODERS, *IMAGES])
@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_gradients_are_those_of_the_kernel_that_was_merged(tmp_path, family, memory):
    """Of A they are s * G B', of B they are s * A' G, for the gradient G of the merged kernel."""
    folder, batch = write_folder(tmp_path / "folder", family, head=CLASSES), draw_batch(family)
    model, _ = load_model(folder, lora_rank=3, lora_alpha=6.0, memory=memory)
    draw_adapters(model)
    merged, _ = load_model(folder)
    for path, variable in merged.named.items():
        tensor = merged.tensors[path]
        variable.assign(tensor.form.to_variable(export_arrays(model)[tensor.name]))
    np.testing.assert_allclose(model(batch["inputs"]), merged(batch["inputs"]), rtol=1e-11, atol=1e-12)
    found, full = gradients_of(model, batch), gradients_of(merged, batch)
    paths = {id(variable): path for path, variable in model.named.items()}
    for layer in model.adapted:
        gradient, (a, b) = full[paths[id(layer.kernel)]], (kernel.numpy() for kernel in layer.kernels)
        assert relative(found[paths[id(layer.kernel_a)]], 2.0 * gradient @ b.T) < 1e-9
        assert relative(found[paths[id(layer.kernel_b)]], 2.0 * a.T @ gradient) < 1e-9
    others = set(found) - model.added
    assert others
    assert all(relative(found[path], full[path]) < 1e-9 for path in others)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_policies_give_the_same_bits(bert, precision):
    stored, again = (
        gradients_of(load_model(bert, precision, lora_rank=3, memory=memory)[0], draw_batch("bert"))
        for memory in ("store", "recompute")
    )
    assert all(np.array_equal(gradient, again[path]) for path, gradient in stored.items())


def flops_of_step(model, batch):
    return count_flops(Step(window_of(model)).prepare(iter(tf.data.Dataset.from_tensors(batch))).graph, 4)


def test_no_gradient_of_a_frozen_kernel_is_computed(bert):
    batch, rank = draw_batch("bert"), 2
    rows = 4 * 11
    kernels = DEPTH * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN) * rows + 4 * WIDTH**2  # of the blocks, and the pooler
    first = 3 * WIDTH**2 * rows  # the gradients of the embedding by queries, keys and values
    adapters = 2 * DEPTH * 6 * rank * 2 * WIDTH * rows // 2 - 2 * rank * WIDTH * rows
    full, adapted = (flops_of_step(load_model(bert, **keys)[0], batch) for keys in ({}, {"lora_rank": rank}))
    assert full - adapted == 2 * (kernels + first - adapters)


def test_patterns_of_freeze_decide_after_the_adapters(bert):
    norms = "segments/*/gamma"
    model, _ = load_model(bert, lora_rank=2, freeze=["*/kernel_a", f"-{norms}"])
    trained = [model.tensors[path].name for path in model.trainable_paths]
    assert sum(name.endswith("LayerNorm.weight") for name in trained) == 2 * DEPTH + 1
    assert not any(name.endswith("lora_A.weight") for name in trained)
    assert sum(name.endswith("lora_B.weight") for name in trained) == 2 * DEPTH


def test_exports_without_adapters_are_the_file(bert):
    stored = StoredTensors(Folder(bert))
    found = export_arrays(load_model(bert, "float32")[0])
    assert found.keys() == stored.shapes.keys()
    assert all(np.array_equal(array, stored.read(name)) for name, array in found.items())


TABLE = ("model=pretrained", "data=table", "data.path=mails.csv", "data.text_column=text", "data.label_column=kind")


def test_a_frozen_layer_without_weights_is_refused_and_its_remedy_trains_it(compose, tmp_path):
    folder = write_folder(tmp_path / "folder", "bert", head=MASKED)  # without a pooler
    given = (*TABLE, f"model.path={folder}", "model.lora_rank=2")
    with pytest.raises(
        ConfigError, match=r"does not have 2 of .* that are frozen .*; train them: model\.freeze="
    ) as raised:
        begin_with_weights(compose(*given), build_model(compose(*given).model, SPEC))
    remedy = str(raised.value).partition("train them: ")[2]
    config = compose(*given, remedy)
    model = build_model(config.model, SPEC)
    started = begin_with_weights(config, model)
    assert {model.tensors[path].name for path in started.left if path not in model.added} == {
        *("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias")
    }


@pytest.mark.slow
def test_a_run_from_one_with_other_adapters_gets_them_merged(compose, tmp_path):
    folder = write_folder(tmp_path / "vit", "vit", head=CLASSES)
    images = ("data=synthetic", "data.image_size=16", "data.num_classes=3", "data.train_examples=64", "batch_size=16")
    given = ("model=pretrained", f"model.path={folder}", *images, f"run.dir={tmp_path}", "train.steps=2", "optim=adam")
    run(compose(*given, "run.name=base", "model.lora_rank=4"))
    pixels, logits, added = tf.random.stateless_uniform([2, 16, 16, 3], [1, 2]), [], []
    for keys in (["lora_rank=4", "lora_dropout=0.5"], ["lora_rank=2"], []):
        config = compose(*given, "model.weights=base", *(f"model.{key}" for key in keys))
        model = build_model(config.model, ModelSpec((16, 16, 3), 3))
        started = begin_with_weights(config, model)
        assert set(started.left) <= model.added
        assert started.unused == []
        logits.append(model(pixels).numpy())
        added.append(len(started.left))
    assert added == [0, 4 * DEPTH, 0]
    for other in logits[1:]:
        np.testing.assert_allclose(other, logits[0], rtol=1e-4, atol=1e-5)
