"""Frozen variables: they keep their values, and the gradient of the others is what it was."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.step import Step
from accumtrain.errors import ConfigError
from accumtrain.measure.flops import count_flops
from accumtrain.models.build import build_model, find_frozen_paths
from accumtrain.models.config import KerasModelConfig, ModelConfig
from accumtrain.models.layers import Initializer, ModelSpec
from accumtrain.models.norms import BatchNorm
from accumtrain.models.transformers.config import ViTConfig
from accumtrain.optim.config import SgdConfig
from accumtrain.train.memory import state_bytes
from tests.engine.small import examples, lenet, resnet20, revnet38, train, window_for

SHAPE = (8, 8, 3)
MOBILENET = KerasModelConfig(name="MobileNet", args={"alpha": 0.25})
RECOMPUTED = replace(MOBILENET, memory="recompute")
VIT = ViTConfig(depth=2, width=16, heads=2, patch=4, layer_scale=0.5)
CASES = [
    pytest.param(VIT, "segments/1/*", SHAPE, id="vit"),
    pytest.param(lenet(), "segments/0/*", SHAPE, id="lenet"),
    pytest.param(resnet20(units=(1, 1)), "segments/[01]/*", SHAPE, id="resnet"),
    pytest.param(resnet20(units=(1, 1), memory="recompute"), "segments/1/*", SHAPE, id="resnet-recompute"),
    pytest.param(revnet38(units=(1, 1)), "segments/[01]/*", SHAPE, id="revnet"),
    pytest.param(revnet38(units=(1, 1)), "segments/2/*", SHAPE, id="revnet-reversed"),
    pytest.param(MOBILENET, "conv1*", (32, 32, 3), id="keras", marks=pytest.mark.slow),
    pytest.param(RECOMPUTED, "conv_dw_[123]_*", (32, 32, 3), id="keras-recompute", marks=pytest.mark.slow),
]


def values(window):
    return {path: variable.numpy() for path, variable in window.model.named.items()}


@pytest.mark.parametrize(("config", "pattern", "shape"), CASES)
def test_a_frozen_variable_and_its_statistics_stay(config, pattern, shape):
    optim = SgdConfig(lr=0.1, momentum=0.9, weight_decay=0.1)
    frozen = replace(config, freeze=[pattern])
    window = window_for(frozen, optim, shape, micro_steps=2, ema=lambda weights: MovingAverage(weights, 0.9))
    count, before = len(window.model.trainable_variables), values(window)
    train(window, [examples(8, shape)], micro_steps=2)
    changed = {path for path, value in values(window).items() if (value != before[path]).any()}
    kept = set(find_frozen_paths([pattern], [*before]))
    assert kept
    assert changed == set(before) - kept
    assert len(window.gradients) == len(window.optimizer.state) == len(window.ema.averages) == count
    plain = window_for(config, optim, shape, micro_steps=2)
    sizes, all_sizes = state_bytes(window), state_bytes(plain)
    assert sizes["weights"] == all_sizes["weights"]
    share = sum(variable.shape.num_elements() * 4 for variable in window.model.frozen)
    assert sizes["gradients"] == all_sizes["gradients"] - share
    assert sizes["optimizer"] == all_sizes["optimizer"] - share


def gradients_of(config, count):
    """The gradient of one micro-batch by the paths of the variables."""
    window = window_for(config, SgdConfig(), SHAPE)
    Step(window).accumulate(iter(tf.data.Dataset.from_tensors(examples(count, SHAPE))), 1)
    names = {id(variable): path for path, variable in window.model.named.items()}
    pairs = zip(window.variables_, window.gradients, strict=True)
    return {names[id(variable)]: buffer.numpy() for variable, buffer in pairs}


@pytest.mark.parametrize(
    "config", [lenet(), resnet20("group", units=(1, 1)), revnet38("group", units=(1, 1)), VIT], ids=lambda c: c.kind
)
def test_the_gradient_of_the_others_has_the_same_bits(config):
    everything = gradients_of(config, 8)
    for freeze in (["segments/1/*"], ["segments/0/*", "segments/1/*"]):
        some = gradients_of(replace(config, freeze=freeze), 8)
        assert 0 < len(some) < len(everything)
        assert all(np.array_equal(gradient, everything[path]) for path, gradient in some.items())


def flops_of_step(config, count):
    step = Step(window_for(config, SgdConfig(), SHAPE))
    return count_flops(step.prepare(iter(tf.data.Dataset.from_tensors(examples(count, SHAPE)))).graph, count)


@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize(
    ("config", "pattern", "products"),
    [
        # each kernel at each of 4 patches and the class token
        (VIT, "segments/1/*/kernel", 5 * (3 + 1 + 2 * 4) * 16**2),
        (resnet20("group", units=(1, 1)), "segments/1/*/kernel", 8**2 * 2 * (3 * 3 * 16 * 16)),
    ],
    ids=["vit", "resnet"],
)
def test_the_gradient_of_a_frozen_kernel_is_not_computed(config, pattern, products, memory):
    config, count = replace(config, memory=memory), 4
    saved = flops_of_step(config, count) - flops_of_step(replace(config, freeze=[pattern]), count)
    assert saved == 2 * count * products


@pytest.mark.parametrize("build", [resnet20, revnet38])
@pytest.mark.parametrize(
    "freeze",
    ["segments/0/*", *(pytest.param(f"segments/{place}/*", marks=pytest.mark.slow) for place in (1, 2))],
)
def test_every_policy_gives_the_same_bits_with_frozen_norms(build, freeze):
    configs = [replace(build(memory=memory, units=(1, 1)), freeze=[freeze]) for memory in build().policies]
    first, *others = ([*gradients_of(config, 4).values()] for config in configs)
    assert all(all(map(np.array_equal, each, first)) for each in others)


@pytest.mark.parametrize(
    ("dtype", "of_variables", "rtol"),
    [(tf.float32, tf.float32, 1e-5), (tf.float64, tf.float64, 1e-12), (tf.bfloat16, tf.float32, 2e-2)],
)
def test_the_pullback_of_a_frozen_norm_is_that_of_constants(dtype, of_variables, rtol):
    norm, draw = BatchNorm(Initializer(1, of_variables), 3), np.random.default_rng(0)
    norm.frozen = True
    (mean, gamma, beta), variance = draw.normal(size=(3, 3)), draw.uniform(1, 2, 3)
    for name, value in {"moving_mean": mean, "moving_variance": variance, "gamma": gamma, "beta": beta}.items():
        getattr(norm, name).assign(value)
    x, d_y = draw.normal(size=(2, 4, 4, 4, 3))
    scale = gamma / np.sqrt(variance + 1e-3)
    y, backward = norm.pullback(tf.constant(x, dtype), Mode(training=True, recording=True))
    d_x, _ = backward(tf.constant(d_y, dtype))
    assert y.dtype == d_x.dtype == dtype
    np.testing.assert_allclose(y, (x - mean) * scale + beta, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(d_x, d_y * scale, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("config", [resnet20(units=(1, 1)), revnet38(units=(1, 1)), MOBILENET], ids=lambda c: c.kind)
def test_a_frozen_norm_computes_in_training_as_in_evaluation(config):
    of_keras = config.kind == "keras"
    patterns = ["*", "-conv_preds/*"] if of_keras else ["segments/*", "-segments/3/*/dense/*"]
    shape = (32, 32, 3) if of_keras else SHAPE
    window = window_for(replace(config, freeze=patterns), SgdConfig(), shape)
    batch = examples(8, shape)
    assert not window.model.norms
    (update,) = train(window, [batch], micro_steps=2)
    fresh = build_model(config, ModelSpec(shape, 10, seed=3))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], fresh(batch["inputs"]))
    if not of_keras:  # which drops out
        assert update["loss"] == pytest.approx(float(tf.reduce_mean(losses)), rel=1e-5)


def test_nothing_is_frozen_without_patterns():
    model = build_model(ModelConfig.__subclasses__()[0](), ModelSpec(SHAPE, 10))
    assert model.frozen == []
    assert model.frozen_segments == 0


def test_the_paths_of_keras_do_not_depend_on_what_was_built_before():
    config = KerasModelConfig(name="InceptionV3")  # whose layers have no names of their own
    first, again = (list(build_model(config, ModelSpec((75, 75, 3), 3)).named) for _ in range(2))
    assert first == again


def test_the_last_pattern_decides():
    paths = ["a/kernel", "a/bias", "b/kernel"]
    assert find_frozen_paths(["*", "-b/*"], paths) == ["a/kernel", "a/bias"]
    assert find_frozen_paths(["*", "-a/*", "a/bias"], paths) == ["a/bias", "b/kernel"]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["a/kernal"], "model.freeze=a/kernal: no trained variable has such a path; the nearest are a/kernel"),
        (["*", "-c/*"], "model.freeze=-c/*: no trained variable has such a path"),
        ([""], "model.freeze=: no trained variable"),
        (["-a/*"], "model.freeze=[-a/*] freezes nothing: - takes back"),
        (["-a/*"], "begin with what is to be frozen, such as [*,-b/*]"),
        (["a/*", "-*"], "model.freeze=[a/*,-*] freezes nothing"),
        (["*"], "freezes all 2 variables, and nothing is left to train"),
    ],
)
def test_patterns_that_choose_nothing_or_everything(patterns, said):
    with pytest.raises(ConfigError) as refused:
        find_frozen_paths(patterns, ["a/kernel", "b/bias"])
    assert said in str(refused.value)
