"""Keras models cut into chains: where, and that nothing but memory depends on it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.backprop import tape
from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.config import KerasModelConfig
from accumtrain.models.keras.cuts import CutPiece, choose_kept_segments, join_cheapest, list_pieces
from accumtrain.models.keras.model import KerasModel
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import AdamConfig
from accumtrain.train.build import build_optimizer
from accumtrain.train.checkpoint import Checkpoints, restore_model
from benchmarks.asked import bytes_asked_at_peak
from tests.engine.small import examples, train
from tests.keras.small_models import attention
from tests.manifests import FACTS

ADAM = AdamConfig(lr=1e-3, weight_decay=0.0, epsilon=1e-7)
KINDS = ("loss", "gradient", "statistics")
SMALL_INPUT = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}  # the others take 32


def keras_config(memory="store", name="MobileNetV3Small"):
    return KerasModelConfig(memory=memory, name=name)


def residual(dtype="float32", blocks=3):
    """Convolutions, batch norm, dropout and squeeze-and-excitation; residual sums are cut points."""
    keras.utils.set_random_seed(5)
    images = keras.Input((16, 16, 3), name="images")
    x = layers.Conv2D(8, 3, padding="same", dtype=dtype, name="stem")(images)
    for block in range(blocks):
        y = layers.Conv2D(8, 3, padding="same", use_bias=False, dtype=dtype)(x)
        y = layers.BatchNormalization(dtype=dtype)(y)
        y = layers.Activation("swish", dtype=dtype)(y)
        gate = layers.GlobalAveragePooling2D(keepdims=True, dtype=dtype)(y)
        gate = layers.Conv2D(8, 1, activation="sigmoid", dtype=dtype)(gate)
        y = layers.Multiply(dtype=dtype)([y, gate])
        y = layers.Dropout(0.3, dtype=dtype)(y)
        x = layers.Add(dtype=dtype, name=f"sum{block}")([x, y])
    x = layers.GlobalAveragePooling2D(dtype=dtype, name="pool")(x)
    return keras.Model(images, layers.Dense(10, dtype=dtype, name="logits")(x))


def streams(count):
    """Every layer takes the `count` before it; of two the cells of NASNet do so."""
    keras.utils.set_random_seed(5)
    images = keras.Input((8, 8, 3))
    before = [layers.Conv2D(4, 3, padding="same")(images) for _ in range(count)]
    for _ in range(8):
        before = [*before[1:], layers.Add()([layers.Conv2D(4, 3, padding="same")(before[-1]), *before[:-1]])]
    pooled = [layers.GlobalAveragePooling2D()(stream) for stream in before]
    return keras.Model(images, layers.Dense(10)(layers.Concatenate()(pooled)))


def window_of(memory, keras_model):
    model = KerasModel(keras_config(memory), keras_model, tf.as_dtype(keras_model.output.dtype))
    return Window(model, build_optimizer(ADAM), seed=1)


def gradients(model, size=16):
    """Loss, gradient and batch statistics of one micro-batch, lists of arrays."""
    data = examples(8, (size, size, 3))
    collected = {}

    def emit(gradients):
        collected.update({variable.ref(): gradient for variable, gradient in gradients})
        return [gradient.op for _, gradient in gradients]

    def loss(logits):
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(data["targets"], logits))

    @tf.function(autograph=False)
    def run():
        mode = Mode(training=True, recording=True, seed=tf.constant([1, 2]))
        value, _ = tape.gradient(model, data["inputs"], loss, mode, emit)
        statistics = [tensor for norm in model.norms for tensor in mode.statistics[norm]]
        return [value], [collected[variable.ref()] for variable in model.trainable_variables], statistics

    return [[tensor.numpy() for tensor in tensors] for tensors in run()]


def distance(actual, expected):
    """Of all values together, relative to `expected`."""
    a, e = (np.concatenate([value.ravel().astype("float64") for value in values]) for values in (actual, expected))
    assert np.linalg.norm(e) > 0
    return np.linalg.norm(a - e) / np.linalg.norm(e)


def assert_near(found, exact, bound):
    for kind, actual, expected in zip(KINDS, found, exact, strict=True):
        assert distance(actual, expected) < bound, kind


def test_cut_points_are_where_all_paths_meet():
    model = residual()
    chain = list_pieces(model)
    meeting = [model.get_layer(name).output for name in ("images", "stem", "sum0", "sum1", "sum2", "pool", "logits")]
    assert [id(piece.output) for piece in chain] == [id(tensor) for tensor in meeting]
    image, features = 16 * 16 * 3 * 4, 16 * 16 * 8 * 4
    assert [piece.kept for piece in chain] == [image, features, features, features, features, 8 * 4, 10 * 4]
    assert [piece.inner for piece in chain][:3] == [image, features, 6 * features + 2 * 8 * 4]


def test_cheapest_is_the_best_of_all_partitions():
    draw = np.random.default_rng(0)
    for _ in range(30):
        chain = [CutPiece((), int(kept), int(kept + draw.integers(0, 40)), 0) for kept in draw.integers(1, 30, 7)]
        ends, peak = join_cheapest(chain)
        all_ends = [[*(end for end in range(6) if chosen[end]), 6] for chosen in itertools.product([0, 1], repeat=6)]
        assert peak == _peak(chain, ends) == min(_peak(chain, other) for other in all_ends)


def _peak(chain, ends):
    kept, worst, begin = 0, 0, 0
    for end in ends:
        worst = max(worst, kept + sum(piece.inner for piece in chain[begin : end + 1]))
        kept, begin = kept + chain[end].kept, end + 1
    return worst


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float64", 1e-12)])
def test_recomputed_gradient_is_the_stored_one(dtype, bound):
    policies = {m: KerasModel(keras_config(m), residual(dtype), tf.as_dtype(dtype)) for m in ("store", "recompute")}
    assert [segment.memory for segment in policies["recompute"].segments] == ["recompute"] * 3 + ["store"]
    stored, recomputed = (gradients(model) for model in policies.values())
    assert_near(recomputed, stored, bound)
    assert all(np.any(value) for values in stored for value in values), "every array has something to compare"


def test_replay_draws_the_same_dropout():
    """The test above can fail: a replay with other seeds gives another gradient."""
    model = KerasModel(keras_config("recompute"), residual(), tf.float32)
    expected = gradients(model)[1]
    for segment in model.segments:
        segment._seeds = [(place, draw + 7) for place, draw in segment._seeds]
    assert distance(gradients(model)[1], expected) > 1e-2


@pytest.mark.slow
def test_memory_is_saved():
    peaks = {memory: tensor_bytes(window_of(memory, residual(blocks=8))) for memory in ("store", "recompute")}
    assert peaks["recompute"] < 0.5 * peaks["store"]


def tensor_bytes(window):
    """The peak of a micro-step with 64 images, above what stays, without the scratch memory of its kernels."""
    step = Step(window)
    batches = iter(tf.data.Dataset.from_tensors(examples(64, (16, 16, 3))).repeat())
    step.accumulate(batches, 1)
    return bytes_asked_at_peak(lambda: step.accumulate(batches, 1), workspace=False)


def gradients_of_application(name, memory, precision):
    return gradients(build_model(keras_config(memory, name), ModelSpec((32, 32, 3), 10, precision, seed=1)), 32)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-4), ("float64", 1e-12)])
@pytest.mark.parametrize("name", ["MobileNetV3Small", "EfficientNetB0", "NASNetMobile"])
def test_recomputed_gradient_of_a_keras_application(name, precision, bound):
    stored, recomputed = (gradients_of_application(name, memory, precision) for memory in ("store", "recompute"))
    assert_near(recomputed, stored, bound)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV3Small", "EfficientNetB0"])
def test_recomputation_in_bfloat16_is_closer_to_storing_than_the_precision_is_to_float32(name):
    """Other operations are fused on both sides of a cut, so that other roundings of bfloat16 are made."""
    stored, recomputed = (gradients_of_application(name, memory, "bfloat16") for memory in ("store", "recompute"))
    exact = gradients_of_application(name, "store", "float32")
    for kind, expected, actual, truth in zip(KINDS, stored, recomputed, exact, strict=True):
        assert distance(actual, expected) < 0.5 * distance(expected, truth), kind


@pytest.mark.slow
@pytest.mark.parametrize(("before", "now"), [("store", "recompute"), ("recompute", "store")])
def test_a_run_continues_under_another_policy(tmp_path, before, now):
    batches = [examples(8, (16, 16, 3), seed) for seed in (0, 1)]
    straight = window_of(before, residual("float64"))
    expected = train(straight, batches, 1)[1]
    first = window_of(before, residual("float64"))
    train(first, batches[:1], 1)
    with Checkpoints(tmp_path, first, keep=1, facts=FACTS.copy) as checkpoints:
        checkpoints.save()

    other = window_of(now, residual("float64"))
    assert Checkpoints(tmp_path, other, keep=1, facts=FACTS.copy).restore() is not None
    actual = train(other, batches[1:], 1)[0]
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    for a, e in zip(other.model.trainable_variables, straight.model.trainable_variables, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-9)

    evaluated = window_of(now, residual("float64")).model
    restore_model(tmp_path, evaluated, None)
    images = batches[0]["inputs"]
    np.testing.assert_allclose(evaluated(images), first.model(images), rtol=1e-12)


def test_a_model_without_cut_points_says_so():
    with pytest.raises(ConfigError, match=r"Threes has no cut points .* use model.memory=store"):
        KerasModel(keras_config("recompute", "Threes"), streams(3), tf.float32)
    assert len(KerasModel(keras_config("store", "Threes"), streams(3), tf.float32).segments) == 1


def test_two_tensors_together_are_a_cut_point_where_single_ones_are_not():
    stored, recomputed = (KerasModel(keras_config(memory), streams(2), tf.float32) for memory in ("store", "recompute"))
    assert len(recomputed.segments) > 2
    for kind, exact, found in zip(KINDS, gradients(stored, 8), gradients(recomputed, 8), strict=True):
        assert kind == "statistics" or distance(found, exact) < 1e-5, kind
    shapes = [[variable.shape for variable in each.trainable_variables] for each in (stored, recomputed)]
    assert shapes[0] == shapes[1]


def test_masks_pass_the_cut_points_and_the_model_can_be_saved(tmp_path):
    """The layers between take no mask: they find it on their input. One of the two tensors is the input itself."""
    whole, words = attention(), tf.constant([[3, 4, 5, 0, 0, 0, 0], [6, 7, 0, 0, 0, 0, 0]])
    model = KerasModel(keras_config("recompute"), whole, tf.float32)
    assert len(model.segments) > 1
    expected = whole(words)
    np.testing.assert_allclose(model(words, EVALUATION), expected, atol=1e-6)
    whole.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "model.keras")(words), expected, atol=1e-6)


def test_a_mask_on_the_outputs_is_left_out():
    class Pool(layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking = True

        def call(self, x, mask=None):
            return tf.reduce_mean(x, axis=1)

    images = keras.Input((8, 8))
    pooled = Pool()(layers.Dense(16)(layers.Masking()(images)))
    model, x = keras.Model(images, layers.Dense(10)(pooled)), tf.ones([2, 8, 8])
    logits = KerasModel(keras_config(), model, tf.float32)(x, Mode(training=False))
    np.testing.assert_array_equal(logits, model(x))


def test_the_pieces_of_two_tensors_hold_each_operation_once():
    model = streams(2)
    assert len(list_pieces(model)) == 3  # the images, all that can only be cut at two tensors, the logits
    chain = list_pieces(model, 2)
    assert max(len(piece.outputs) for piece in chain) == 2
    assert sum(piece.inner for piece in chain) == sum(piece.inner for piece in list_pieces(model))
    assert [piece.kept for piece in chain].count(2 * 8 * 8 * 4 * 4) == 8  # before and behind each layer between two


def test_segments_are_worth_keeping_by_what_they_spare_for_each_byte():
    sizes = [(40, 4000), (10, 100), (10, 100), (20, 4000), (20, 0)]
    segments = [CutPiece((), 1, inner, spared) for inner, spared in sizes]
    chosen = [choose_kept_segments(segments, share) for share in (0.0, 0.19, 0.2, 0.6, 0.7, 0.8, 1.0)]
    assert chosen == [set(), set(), {3}, {3, 0}, {3, 0, 2}, {3, 0, 2, 1}, {0, 1, 2, 3, 4}]


def test_multiplications_are_those_of_the_kernels():
    images = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same")(images)
    x = layers.DepthwiseConv2D(5, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    chain = list_pieces(keras.Model(images, layers.Dense(7)(x)))
    assert sum(piece.multiplications for piece in chain) == 8 * 8 * 4 * 3 * 3 * 3 + 8 * 8 * 4 * 25 + 7 * 4


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_segments_that_are_kept_change_the_gradient_by_no_more_than_recomputing(share):
    def built(memory, kept_share=0.0):
        return KerasModel(keras_config(memory), residual("float64", 8), tf.float64, kept_share=kept_share)

    kept = built("recompute", share)
    policies = [segment.memory for segment in kept.segments]
    assert policies.count("store") > 1
    assert policies.count("recompute") > 1
    assert_near(gradients(kept), gradients(built("store")), 1e-12)


def test_other_state_is_refused():
    class Counter(layers.Layer):
        def build(self, _):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

        def call(self, x):
            self.calls.assign_add(1.0)
            return x

    images = keras.Input((8, 8, 3))
    x = layers.GlobalAveragePooling2D()(Counter(name="counter")(images))
    model = KerasModel(keras_config(), keras.Model(images, layers.Dense(10)(x)), tf.float32)
    with pytest.raises(ConfigError, match="counter/calls changes in a forward pass"):
        model(tf.zeros([2, 8, 8, 3]), Mode(training=True, seed=tf.constant([1, 2])))


@pytest.mark.slow
def test_all_of_keras_applications_have_cut_points():
    for name, builder in vars(keras.applications).items():
        if not name[0].isupper():
            continue
        size = SMALL_INPUT.get(name, 32)
        model = builder(weights=None, input_shape=(size, size, 3), classes=10)
        chain = list_pieces(model, 2 if name.startswith("NASNet") else 1)
        _, peak = join_cheapest(chain)
        share = peak / sum(piece.inner for piece in chain)
        assert share < 0.6, f"{name}: {share:.2f}"
        keras.backend.clear_session()
