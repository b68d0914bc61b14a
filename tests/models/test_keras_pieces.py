"""The pieces, segments and parts of a Keras model, each by itself."""

from dataclasses import replace

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.backprop.mode import Mode
from accumtrain.errors import ConfigError
from accumtrain.models.config import KerasModelConfig
from accumtrain.models.keras.applications import build_keras, read_keras_file
from accumtrain.models.keras.cuts import CutPiece, choose_kept_segments, cut_model, join_pieces, list_pieces
from accumtrain.models.keras.model import KerasModel, KerasSegment
from accumtrain.models.layers import ModelSpec

STORED = KerasModelConfig(memory="store", name="MobileNetV3Small")


def spec_of(side, precision="float32"):
    return ModelSpec((side, side, 3), 10, precision=precision, seed=1)


def chain_of(*sizes):
    """Pieces with these kept bytes, inner bytes and multiplications."""
    return [CutPiece((place,), *size) for place, size in enumerate(sizes)]


def test_segments_hold_the_sums_of_their_pieces():
    chain = chain_of((1, 10, 100), (2, 20, 200), (3, 30, 300), (4, 40, 400), (5, 50, 500))
    expected = {0: (1, 10, 100), 2: (3, 50, 500), 4: (5, 90, 900)}
    assert join_pieces(chain, [0, 2, 4]) == [CutPiece((place,), *sums) for place, sums in expected.items()]


def test_one_byte_is_one_byte():
    """Spared multiplications count for each byte, down to a single one."""
    assert choose_kept_segments(chain_of((0, 1, 3), (0, 2, 4)), 1 / 3) == {0}
    assert choose_kept_segments(chain_of((0, 0, 0), (0, 2, 4)), 1.0) == {0, 1}, "one without bytes divides nothing by 0"


def test_an_output_that_nothing_takes_is_no_hindrance():
    images = keras.Input((8, 8, 4))
    taken, _ = keras.ops.split(layers.Conv2D(8, 3)(images), 2, axis=-1)
    model = keras.Model(images, layers.Dense(3)(layers.Flatten()(taken)))
    assert id(taken) in {id(piece.output) for piece in list_pieces(model)}


@pytest.mark.parametrize("shape", [(None, 8, 3), (8, None, 3), (8, 8, None)])
def test_a_size_that_is_not_known_is_refused(shape):
    images = keras.Input(shape)
    model = keras.Model(images, keras.ops.relu(images))
    with pytest.raises(ConfigError, match=r"has the shape .*None.*: cut points are chosen by sizes"):
        cut_model("Model", model)


def test_a_layer_in_several_places_is_refused_in_one_line():
    squash = layers.Activation("tanh")
    images = x = keras.Input((64,))
    for _ in range(4):
        x = squash(layers.Dense(64)(x))
    model = keras.Model(images, squash(layers.Dense(4)(x)))
    with pytest.raises(
        ConfigError, match=r"^Model can't be cut into segments, for example where .*; use a layer"
    ) as refusal:
        cut_model("Model", model)
    assert not [each for each in ("\n", "The following", "()") if each in str(refusal.value)]


def residual(first=None, second=None):
    """Four residual blocks; the layers stand in the first and the last."""
    images = keras.Input((8, 8, 4))
    x = layers.Conv2D(4, 3, padding="same")(images)
    for inner in (first, None, None, second):
        y = layers.Conv2D(4, 3, padding="same")(layers.ReLU()(x))
        x = layers.Add()([x, layers.Conv2D(4, 3, padding="same")(inner(y) if inner else y)])
    return keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def test_single_tensors_are_cut_points_where_they_serve():
    parts, kept = cut_model("Model", residual())
    assert len(parts) > 2
    assert all(len(part.inputs) == len(part.outputs) == 1 for part in parts)
    assert kept == set()


def test_all_but_the_last_part_may_be_kept():
    parts, kept = cut_model("Model", residual(), 1.0)
    assert kept == set(range(len(parts) - 1))


def test_a_part_copies_a_tensor_that_goes_through_it():
    """Keras takes no input of a model as its output."""
    images = keras.Input((8, 8, 3), dtype="float64")
    first = x = layers.Conv2D(4, 3, padding="same", dtype="float64")(images)
    for _ in range(8):
        x = layers.Conv2D(4, 3, padding="same", dtype="float64")(x)
    x = layers.Add(dtype="float64")([first, x])
    model = keras.Model(images, layers.GlobalAveragePooling2D(dtype="float64")(x))
    parts, _ = cut_model("Model", model)
    copies = [[type(layer).__name__ for layer in part.layers].count("Identity") for part in parts]
    assert sum(copies) == 1
    for part in parts:
        assert {id(tensor) for tensor in part.inputs}.isdisjoint(id(tensor) for tensor in part.outputs)
        assert {tensor.dtype for tensor in part.outputs} == {"float64"}


def test_one_seed_generator_in_two_parts_is_refused():
    class Noise(layers.Layer):
        def __init__(self, generator):
            super().__init__()
            self.generator = generator

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)

    shared = keras.random.SeedGenerator(1)
    cut_model("Model", residual(Noise(shared), Noise(keras.random.SeedGenerator(1))))
    with pytest.raises(ConfigError, match=r"^Model draws from one seed generator in several places"):
        cut_model("Model", residual(Noise(shared), Noise(shared)))


@pytest.fixture
def two_norms():
    """A model with a normalisation that has weights, and one that has none."""
    images = keras.Input((4,))
    x = layers.BatchNormalization(name="affine")(layers.Dense(4, name="first")(images))
    x = layers.BatchNormalization(center=False, scale=False, name="plain")(layers.Dense(4, name="second")(x))
    return KerasModel(STORED, keras.Model(images, layers.Dense(2, name="last")(x)), tf.float32)


@pytest.mark.parametrize(
    ("frozen", "constant"),
    [
        ({"first/kernel"}, set()),
        ({"affine/gamma"}, set()),
        ({"affine/gamma", "affine/beta"}, {"affine"}),
        ({"affine/gamma", "affine/beta", "affine/moving_mean"}, {"affine"}),
        ({"plain/moving_mean"}, {"plain"}),
    ],
    ids=lambda value: "+".join(sorted(value)) or "none",
)
def test_a_norm_is_frozen_with_all_of_its_weights(two_norms, frozen, constant):
    two_norms.freeze(frozen)
    names = [layer.name for layer in two_norms.whole().layers if isinstance(layer, layers.BatchNormalization)]
    norms = dict(zip(names, two_norms.normalisations, strict=True))
    assert {name for name, norm in norms.items() if norm.frozen} == constant
    mode = training(1, 2)
    two_norms(tf.random.stateless_normal([8, 4], [1, 2]), mode)
    assert {name for name, norm in norms.items() if norm in mode.statistics} == {"affine", "plain"} - constant


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_policy_of_dtypes_is_that_of_the_build_alone(precision):
    built = build_keras(STORED, spec_of(32, precision))
    dtypes = {layer.compute_dtype for layer in built.whole().layers}
    assert precision in dtypes
    assert not built.joins_loss
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    ("side", "args", "message"),
    [
        (32, {"include_top": False, "pooling": "avg"}, "model.args may not set include_top: .* leave it out"),
        (32, {"input_tensor": 1}, "may not set input_tensor"),
        (32, {"alpha": -1}, r"refuses \(32, 32, 3\) images with model.args=\{alpha:-1\}: .*; choose other arguments"),
        (8, {}, r"refuses \(8, 8, 3\) images: .*; choose images of another size"),
    ],
)
def test_what_makes_no_classifier_is_refused(side, args, message):
    with pytest.raises(ConfigError, match=message):
        build_keras(KerasModelConfig(name="DenseNet121" if side == 8 else "MobileNet", args=args), spec_of(side))


def test_an_output_that_is_no_row_of_logits_is_refused(monkeypatch):
    images = keras.Input((32, 32, 3))
    headless = keras.Model(images, layers.GlobalAveragePooling2D()(images))
    monkeypatch.setattr(keras.applications, "MobileNet", lambda **_: headless)
    with pytest.raises(ConfigError, match=r"outputs of shape \(None, 3\): must be \(None, 10\)"):
        build_keras(KerasModelConfig(name="MobileNet"), spec_of(32))


def test_the_share_that_is_kept_reaches_the_segments():
    stored = []
    for share in (0.0, 0.5):
        built = build_keras(replace(STORED, memory="recompute", kept_share=share), spec_of(32))
        segments = [segment for segment in built.segments if isinstance(segment, KerasSegment)]
        stored.append(sum(segment.memory == "store" for segment in segments))
    assert stored[0] == 1 < stored[1]


def segment_of(model, penalised=False):
    built = KerasModel(STORED, model, tf.float32, penalised=penalised)
    (segment,) = built.segments
    return segment, built


def training(*seed):
    return Mode(training=True, recording=True, seed=tf.constant(seed))


def test_each_layer_draws_anew_for_each_seed():
    images = keras.Input((64,))
    first, second = layers.Dropout(0.5, name="first"), layers.Dropout(0.5, name="second")
    segment, _ = segment_of(keras.Model(images, [first(images), second(images)]))
    ones = tf.ones([4, 64])
    drawn = [mask.numpy() for seed in range(8) for mask in segment(ones, training(1, seed))]
    assert len({mask.tobytes() for mask in drawn}) == 2 * 8
    again = [mask.numpy() for mask in segment(ones, training(1, 7))]
    np.testing.assert_array_equal(again, drawn[-2:])


@pytest.mark.parametrize("momentum", [0.9, 0.0, 1.0])
def test_recorded_statistics_are_those_of_the_batch_alone(momentum):
    images = keras.Input((3,))
    norm = layers.BatchNormalization(momentum=momentum)
    segment, built = segment_of(keras.Model(images, norm(images)))
    norm.moving_mean.assign([5.0, 6.0, 7.0])
    norm.moving_variance.assign([2.0, 3.0, 4.0])
    x, mode = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32), training(1, 2)
    segment(tf.constant(x), mode)
    ((mean, variance),) = mode.statistics.values()
    share = 0.0 if momentum == 1.0 else 1.0  # such a layer keeps what it has
    np.testing.assert_allclose(mean, share * x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, share * x.var(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(norm.moving_mean.numpy(), [5.0, 6.0, 7.0], "a pass changes no variable")
    assert [each.momentum for each in built.norms] == [momentum]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("sum_dtype", [tf.float32, tf.float64])
def test_losses_of_layers_are_added_along_the_way(dtype, sum_dtype):
    images = keras.Input((3,))
    squared, absolute = keras.regularizers.L2(0.5), keras.regularizers.L1(0.01)
    layer = layers.Dense(4, kernel_regularizer=squared, activity_regularizer=absolute, dtype=dtype)
    segment, built = segment_of(keras.Model(images, layer(images)), penalised=True)
    x = tf.constant(np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32))
    y, penalty = segment((x, tf.constant(2.0, sum_dtype)), training(1, 2))
    expected = 0.5 * np.sum(np.square(layer.kernel.numpy())) + 0.01 * np.sum(np.abs(y)) / 16
    assert (penalty.dtype, penalty.shape) == (sum_dtype, [])
    np.testing.assert_allclose(penalty, 2.0 + expected, rtol=1e-5 if dtype == "float32" else 1e-2)
    _, start = built.cast(x)
    assert (start.dtype, float(start)) == (tf.float32, 0.0)


def test_floats_of_an_output_get_the_dtype_of_the_model():
    images = keras.Input((3,), dtype="bfloat16")
    x = layers.Dense(4, dtype="mixed_bfloat16")(images)
    segment, _ = segment_of(keras.Model(images, [x, keras.ops.argmax(x, axis=-1)]))
    floats, indices = segment(tf.ones([2, 3], tf.bfloat16), training(1, 2))
    assert (floats.dtype, indices.dtype) == (tf.float32, tf.int32)


def test_a_variable_of_nobody_is_not_changed():
    elsewhere = keras.Variable(0.0, trainable=False)

    class Counter(layers.Layer):
        def call(self, x):
            elsewhere.assign_add(1.0)
            return x

    images = keras.Input((3,))
    segment, _ = segment_of(keras.Model(images, Counter()(images)))
    with pytest.raises(ConfigError, match="changes a variable that is not its own during its call, which may change"):
        segment(tf.ones([2, 3]), training(1, 2))


def test_a_file_that_names_layers_is_read_as_far_as_it_knows_them(tmp_path):
    images = keras.Input((3,))
    x = layers.Dense(4, name="known")(images)
    model = keras.Model(images, layers.Dense(2, name="absent")(layers.Dense(4, name="bare")(x)))
    kernel, bias = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(4, dtype=np.float32)
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file.attrs["layer_names"] = [b"known", b"bare"]
        known = file.create_group("known")
        known.attrs["weight_names"] = [b"known/kernel:0", b"known/bias:0"]
        known["known/kernel:0"], known["known/bias:0"] = kernel, bias
        file.create_group("bare")
    arrays = read_keras_file(tmp_path / "weights.h5", model)
    assert arrays.keys() == {"known/kernel", "known/bias"}
    np.testing.assert_array_equal(arrays["known/kernel"], kernel)
    np.testing.assert_array_equal(arrays["known/bias"], bias)
