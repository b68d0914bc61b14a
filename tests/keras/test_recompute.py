"""Recomputed Keras layers: the gradient of the layer itself, with only its input kept."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.keras import Recompute, ReversibleSequence, accumulate, recompute
from benchmarks.asked import bytes_asked_at_peak
from tests.keras.gradients import (
    AS_WRITTEN,
    WAYS,
    assert_close_gradients,
    assert_same_bits,
    assert_same_gradients,
    gradients,
)
from tests.keras.programs import assert_a_fresh_process_continues

both_ways = pytest.mark.parametrize("way", ["eager", "graph"])


@pytest.fixture(autouse=True)
def as_written(seeded):
    tf.config.optimizer.set_experimental_options(AS_WRITTEN)


def images(*shape, dtype="float32"):
    return tf.cast(tf.random.stateless_normal(shape or [4, 8, 8, 3], [0, 1]), dtype)


def block(drop=0.3):
    convolution = layers.Conv2D(4, 3, padding="same", activation="gelu")
    return keras.Sequential([convolution, layers.BatchNormalization(), layers.Dropout(drop, seed=1)])


def network(wrap, drop=0.3):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input([8, 8, 3])
    for _ in range(3):
        x = wrap(block(drop))(x)
    return keras.Model(inputs, layers.Dense(3, dtype="float32")(layers.GlobalAveragePooling2D()(x)))


def as_it_is(layer):
    return layer


def assert_same(make, x, way="eager"):
    """make(wrap) has the same gradients and state with `recompute` as without."""
    assert_same_gradients(make, (as_it_is, recompute), x, way)


@both_ways
@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "mixed_float16", "float64"])
def test_gradient_is_bitwise_that_of_the_layer(name, way):
    keras.config.set_dtype_policy(name)
    assert_same(network, images(dtype="float64" if name == "float64" else "float32"), way)


@pytest.mark.slow
@pytest.mark.xla
def test_xla_gives_the_gradient_to_rounding():
    assert_close_gradients(network, (as_it_is, recompute), images(), "xla")


class TwoStreams(layers.Layer):
    """Takes and gives structures, with an integer among them; adds a loss."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = layers.Embedding(5, 4)
        self.out = layers.Dense(4, activity_regularizer="l2", kernel_regularizer="l2")

    def call(self, inputs):
        y = self.out(inputs["x"] + self.table(inputs["word"]))
        self.add_loss(keras.ops.mean(y**2))
        return {"y": y, "word": inputs["word"] + 1}


@both_ways
def test_structures_integers_sparse_gradients_and_losses(way):
    x = {"x": images(6, 4), "word": tf.constant([0, 3, 3, 1, 0, 3])}
    assert_same(lambda wrap: wrap(TwoStreams()), x, way)


@both_ways
def test_one_tensor_for_several_arguments(way):
    """Rounding depends on the order in which the gradients of its uses are summed."""

    def make(wrap):
        x = keras.Input([6, 8])
        return keras.Model(x, wrap(layers.GroupQueryAttention(4, 2, 1))(x, x))

    assert_same(make, images(4, 6, 8), way)


@both_ways
def test_an_embedding_alone(way):
    """Its input has no gradient, so the replay waits by the weights."""
    words = tf.constant([[0, 3], [3, 1]])
    assert_same(lambda wrap: keras.Sequential([wrap(layers.Embedding(5, 4)), layers.Dense(2)]), words, way)


@both_ways
def test_it_nests_around_itself_and_a_reversible_sequence(way):
    def make(wrap):
        units = [(layers.Dense(4, "tanh"), layers.Dense(4, "tanh")) for _ in range(2)]
        inner = [wrap(layers.Dense(8)), ReversibleSequence(units), layers.BatchNormalization()]
        return wrap(keras.Sequential(inner))

    assert_same(make, images(6, 8), way)


def test_a_frozen_layer_gets_no_gradient():
    def make(wrap):
        inner = keras.Sequential([layers.Dense(4), layers.BatchNormalization(), layers.Dense(4)])
        inner.layers[0].trainable = False
        return wrap(inner)

    assert_same(make, images(6, 4))


class Remat(layers.Wrapper):
    """A layer that Keras computes again by itself."""

    def call(self, x, training=None):
        return keras.remat(lambda value: self.layer(value, training=training))(x)


@pytest.mark.parametrize("wrap", [recompute, Remat])
def test_batch_norm_moves_once_and_dropout_is_drawn_once_unlike_in_keras(wrap):
    """docs/keras_details.md says so of both ways."""

    def trained(wrapped):
        keras.utils.set_random_seed(1)
        inner = keras.Sequential([layers.Dense(16), layers.BatchNormalization(), layers.Dropout(0.5, seed=1)])
        model = keras.Sequential([keras.Input([6]), wrapped(inner), layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(3.0 + images(16, 6), np.arange(16) % 3, batch_size=16, shuffle=False, verbose=0)
        dense, norm, _ = inner.layers
        return [keras.ops.convert_to_numpy(value) for value in (dense.kernel, norm.moving_mean)]

    same = [bool(np.array_equal(*pair)) for pair in zip(trained(wrap), trained(as_it_is), strict=True)]
    assert same == ([True, True] if wrap is recompute else [False, False])


def test_evaluation_is_the_plain_pass():
    model = network(recompute)
    state = [variable.numpy() for variable in model.non_trainable_variables]
    plain = network(as_it_is)
    assert_same_bits([plain.predict(images(), verbose=0)], [model.predict(images(), verbose=0)])
    assert_same_bits(state, [variable.numpy() for variable in model.non_trainable_variables])


@pytest.mark.slow
def test_fit_gives_the_weights_of_the_plain_model():
    found = []
    for wrap in (as_it_is, recompute):
        model = network(wrap)
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
        model.fit(images(8, 8, 8, 3), tf.ones([8, 3]), batch_size=4, epochs=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    assert_same_bits(*found)


class TwoCalls(keras.layers.Layer):
    """Normalises two batches by one layer, as siamese networks do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization()

    def call(self, x, training=None):
        return self.norm(self.norm(x, training=training) + 1.0, training=training)


@pytest.mark.parametrize("wrap", [as_it_is, recompute, lambda layer: recompute(recompute(layer))])
def test_a_batch_norm_that_is_called_twice_is_seen_within(wrap):
    model = keras.Sequential([keras.Input((6,)), wrap(TwoCalls()), layers.Dense(3)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"is called 2 times in one pass.*Accumulate"):
        accumulate(model, 2).train_on_batch(images(4, 6), images(4, 3))


def test_a_second_derivative_is_refused():
    layer, x = recompute(layers.Dense(2, "tanh")), images(3, 2)
    layer(x)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(layer(x))
        slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
    with pytest.raises(NotImplementedError, match="without recompute"):
        outer.gradient(slope, layer.trainable_variables)


@both_ways
@pytest.mark.parametrize("wrap", [recompute, lambda layer: ReversibleSequence([(layer, layers.Dense(4))])])
def test_a_layer_that_keras_computes_again_is_refused(wrap, way):
    """It would read its weights a second time where nothing knows them, and their gradients would be None."""
    model = keras.Sequential([keras.Input([8]), wrap(Remat(layers.Dense(4)))])
    with pytest.raises(ValueError, match=r"gradient of .*kernel would be lost: leave keras\.remat"):
        gradients(model, images(4, 8), way)


def reversed_pair(layer: layers.Layer) -> layers.Layer:
    return ReversibleSequence([(layer, layers.Dense(2))])


@pytest.mark.parametrize("wrap", [as_it_is, recompute, reversed_pair])
def test_each_time_step_has_a_layer(wrap):
    """A wrapper of Keras asks a layer for the shape of its output, and calls it for each step."""
    steps = layers.TimeDistributed(wrap(layers.Dense(2, kernel_initializer="ones")))
    model = keras.Sequential([keras.Input((3, 4)), steps])
    plain = layers.TimeDistributed(layers.Dense(2, kernel_initializer="ones"))
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype("float32")
    if wrap is reversed_pair:
        assert model.output_shape == (None, 3, 4)
    else:
        assert_same_bits([model(x).numpy()], [plain(x).numpy()])
    model.compile("sgd", "mse", jit_compile=False)
    assert np.isfinite(model.train_on_batch(x, np.ones((5, *model.output_shape[1:]))))


def test_what_is_no_layer_is_refused():
    with pytest.raises(ValueError, match="Lambda"):
        recompute(tf.tanh)


def test_config_and_clone():
    layer = Recompute.from_config(recompute(layers.Dense(3, dtype="mixed_bfloat16"), name="again").get_config())
    assert (layer.name, layer.layer.units, layer.layer.compute_dtype) == ("again", 3, "bfloat16")
    model = network(recompute)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same_bits([model(images()).numpy()], [clone(images()).numpy()])


@pytest.mark.slow
def test_a_fresh_process_loads_and_continues(tmp_path):
    model = network(recompute, drop=0.0)  # Keras does not save where a seed generator has arrived
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    model.fit(images(), tf.ones([4, 3]), shuffle=False, verbose=0)
    assert_a_fresh_process_continues(model, images().numpy(), np.ones([4, 3]), tmp_path, as_written=True)


@pytest.mark.parametrize("rewritten", [False, True], ids=["written", "rewritten"])
@both_ways
def test_only_inputs_are_kept(way, rewritten):
    """Eight blocks, of which each keeps its input of 1 MB and would keep five times as much inside."""
    tf.config.optimizer.set_experimental_options(dict.fromkeys(AS_WRITTEN, rewritten))
    x = images(256, 1024)

    def peak(wrap):
        model = keras.Sequential([wrap(keras.Sequential([layers.Activation("tanh")] * 5)) for _ in range(8)])

        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(model(x, training=True) ** 2)
            return tf.reduce_sum(tape.gradient(loss, x))

        step = WAYS[way](step)
        step()
        return bytes_asked_at_peak(step)

    assert peak(as_it_is) >= 40 * x.shape[0] * 1024 * 4
    assert peak(recompute) <= 20 * x.shape[0] * 1024 * 4
