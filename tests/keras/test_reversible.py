"""Reversible Keras layers: the bits of stored activations, and everything else as of any Keras layer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from accumtrain.keras import Reversible, ReversibleSequence
from benchmarks.asked import bytes_asked_at_peak
from tests.keras.gradients import WAYS, assert_close_gradients, assert_same_bits, assert_same_gradients, gradients
from tests.keras.programs import assert_a_fresh_process_continues, run_python

SHAPE = (8, 8, 8)
MEMORIES = ("store", "reverse")
pytestmark = pytest.mark.usefixtures("seeded")
both_ways = pytest.mark.parametrize("way", ["eager", "graph"])


def images(shape=SHAPE, batch=4, dtype="float32"):
    return tf.cast(tf.random.stateless_normal([batch, *shape], [0, 1]), dtype)


def block(channels=4, drop=0.3):
    """A residual function of many layers, with constants that a graph optimizer would multiply into the kernels."""
    return keras.Sequential(
        [
            layers.BatchNormalization(),
            layers.Conv2D(channels, 3, padding="same", activation="gelu"),
            layers.Rescaling(0.7),
            layers.Dropout(drop, seed=1),
            layers.Conv2D(channels, 3, padding="same"),
        ]
    )


def dense(units=4, **kwargs):
    return layers.Dense(units, activation="tanh", **kwargs)


def adds(amount):
    return layers.Dense(4, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(amount))


def sequence(f, g, bits):
    return ReversibleSequence([(f, g)], snap_bits=bits)


def pairs(count=3, make=block):
    return [(make(), make()) for _ in range(count)]


def network(memory, units=3, make=block, **kwargs):
    """A whole model; all memory policies start from the same weights."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(SHAPE)
    x = layers.Conv2D(8, 1)(inputs)
    x = ReversibleSequence(pairs(units, make), memory=memory, **kwargs)(x)
    x = layers.Dense(3, dtype="float32")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x)


@pytest.mark.parametrize("way", ["eager", pytest.param("graph", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "mixed_float16", "float64"])
def test_gradient_is_bitwise_that_of_stored_activations(name, way):
    keras.config.set_dtype_policy(name)
    x = images(dtype="float64" if name == "float64" else "float32")
    assert all(np.any(gradient) for gradient in assert_same_gradients(network, MEMORIES, x, way))


def volumes(memory):
    """Units of three dimensions."""

    def block():
        return keras.Sequential(
            [
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv3D(4, 3, padding="same"),
                layers.Dropout(0.3, seed=1),
            ]
        )

    keras.utils.set_random_seed(1)
    return ReversibleSequence(pairs(3, block), memory=memory)


def masked(memory):
    """Sequences, of which the steps that are all zeros are masked."""
    keras.utils.set_random_seed(1)
    units = [(layers.LSTM(4, return_sequences=True), layers.MultiHeadAttention(2, 2)) for _ in range(2)]
    return keras.Sequential([layers.Masking(), ReversibleSequence(units, memory=memory), layers.Dense(3)])


def steps(seed):
    x = tf.random.stateless_normal([4, 6, 8], [seed, 1])
    return x * tf.sequence_mask([6, 2, 4, 5], 6, tf.float32)[..., tf.newaxis]


INPUTS = {
    "2D": (network, lambda seed: tf.random.stateless_normal([4, *SHAPE], [seed, 1])),
    "3D": (volumes, lambda seed: tf.random.stateless_normal([4, 5, 6, 7, 8], [seed, 1])),
    "sequences with masks": (masked, steps),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("inputs", INPUTS)
def test_bits_stay_those_of_stored_activations_over_updates(inputs, name):
    """Of 20 batches, after as many updates."""
    keras.config.set_dtype_policy(name)
    make, batch = INPUTS[inputs]

    def train(memory):
        model, optimizer = make(memory), keras.optimizers.Adam(0.01)
        model(batch(0))

        @tf.function
        def update(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.cast(model(x, training=True), tf.float32) ** 2)
            found = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
            return [loss, *found]

        optimizer.build(model.trainable_variables)
        found = [value.numpy() for seed in range(20) for value in update(batch(seed))]
        return found + model.get_weights()

    stored, reversed_ = map(train, MEMORIES)
    assert np.isfinite(stored[0])
    assert_same_bits(stored, reversed_)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("place", ["input", "first unit", "last unit"])
@both_ways
def test_a_stream_beyond_its_limit_is_told(way, place, memory):
    units, x = pairs(3, dense), images((8,)).numpy()
    if place == "input":
        x[2, 5] = 300.0
    else:
        units[0 if place == "first unit" else 2] = (dense(), adds(-300.0))
    layer = ReversibleSequence(units, memory=memory, name="row")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"row: the largest value(.|\n)*snap_bits=18"):
        gradients(layer, tf.constant(x), way)
    assert all(np.isfinite(value).all() for value in gradients(layer, tf.constant(x), way, training=False)[0])
    wider = ReversibleSequence(layer.pairs, memory=memory, snap_bits=18)  # the remedy
    assert all(np.isfinite(value).all() for value in gradients(wider, tf.constant(x), way)[0])


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_stream_that_comes_back_is_told(memory):
    """1024 more are the same bits, so that only the unit in between shows them."""
    units = [(adds(amount), adds(0.0)) for amount in (512.0, 512.0)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="stay below 256"):
        gradients(ReversibleSequence(units, memory=memory), images((8,)))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("memory", MEMORIES)
def test_what_is_not_finite_is_told(memory, number):
    x = images((8,)).numpy()
    x[1, 2] = number
    with pytest.raises(tf.errors.InvalidArgumentError, match="infinity or NaN"):
        gradients(ReversibleSequence(pairs(1, dense), memory=memory), tf.constant(x))


@pytest.mark.xla
@pytest.mark.parametrize("memory", MEMORIES)
def test_for_xla_loss_and_gradients_beyond_the_limit_are_not_finite(memory):
    layer, x = ReversibleSequence(pairs(2, dense), memory=memory), images((8,)).numpy()
    assert all(np.isfinite(value).all() for value in gradients(layer, tf.constant(x), "xla")[0])
    x[2, 5] = 300.0
    assert not any(np.isfinite(value).any() for value in gradients(layer, tf.constant(x), "xla")[0])


def test_on_a_cpu_fit_leaves_xla_out():
    model = network("reverse")
    model.compile("sgd", "mse")
    assert model.jit_compile is False


@pytest.mark.xla
@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16"])
def test_xla_gives_the_gradient_to_rounding(name):
    keras.config.set_dtype_policy(name)
    assert_close_gradients(network, MEMORIES, images(), "xla")


def test_streams_of_floats_lose_bits():
    """The test of bits can fail: it does with floats."""
    stored, reversed_ = (gradients(network(memory, snap_bits=0), images())[0] for memory in MEMORIES)
    assert not all(np.array_equal(a, b) for a, b in zip(stored, reversed_, strict=True))


@pytest.mark.parametrize("bits", [16, 22])
@pytest.mark.parametrize("make", [Reversible, sequence])
def test_output_is_that_of_the_formula(make, bits):
    """Each addend is cut off behind the last bit, sums are exact, and each value is rounded to float32."""

    def integers(x):
        return np.trunc(np.asarray(x, np.float64) * 2.0**bits).astype(np.int64)

    def value(x):
        return (x / 2.0**bits).astype(np.float32)

    f, g, x = dense(), dense(), 3 * images((8,))
    y = make(f, g, bits)(x, training=True)
    x1, x2 = np.split(integers(x), 2, axis=-1)
    y1 = x1 + integers(f(value(x2)))
    assert_same_bits([value(np.concatenate([y1, x2 + integers(g(value(y1)))], axis=-1))], [y.numpy()])


@pytest.mark.parametrize("memory", MEMORIES)
def test_an_evaluation_computes_with_floats(memory):
    (f, g), x = pairs(1, dense)[0], 1e6 * images((8,))
    y = ReversibleSequence([(f, g)], memory=memory)(x, training=False)
    x1, x2 = np.split(x.numpy(), 2, axis=-1)
    y1 = x1 + f(x2).numpy()
    assert_same_bits([np.concatenate([y1, x2 + g(y1).numpy()], axis=-1)], [y.numpy()])


@both_ways
def test_the_gradient_of_an_evaluation_is_that_of_stored_activations(way):
    """As fine-tuning with training=False takes it. Reversed floats would be wrong by half here."""

    def linear():
        return layers.Dense(8, kernel_initializer=keras.initializers.RandomNormal(stddev=0.5))

    units = pairs(20, linear)
    found = [gradients(ReversibleSequence(units, memory=m), images((16,)), way, training=False)[0] for m in MEMORIES]
    assert_same_bits(*found)


def test_gradient_is_that_of_the_formula():
    keras.config.set_dtype_policy("float64")
    f, g, x = block(), block(), images(dtype="float64")
    unit = Reversible(f, g, snap_bits=0)
    actual, _ = gradients(unit, x, training=False)

    def plain(x):
        x1, x2 = tf.split(x, 2, axis=-1)
        y1 = x1 + f(x2, training=False)
        return tf.concat([y1, x2 + g(y1, training=False)], axis=-1)

    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(plain(x) ** 2)
    expected = tape.gradient(loss, [x, *(weight.value for weight in unit.trainable_variables)])
    for e, a in zip(expected, actual[1:], strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-9)


def test_state_moves_once_a_pass():
    norm, dropout = layers.BatchNormalization(momentum=0.75), layers.Dropout(0.5, seed=7)
    unit, x = Reversible(norm, dropout), tf.round(images((8,)) * 64) / 64
    gradients(unit, x)
    np.testing.assert_allclose(norm.moving_mean, 0.25 * np.mean(x[:, 4:], axis=0), atol=1e-6)
    assert dropout.seed_generator.state.numpy().tolist() == [7, 1]
    gradients(unit, x, training=False)
    assert dropout.seed_generator.state.numpy().tolist() == [7, 1]


def test_a_pair_stays_a_pair():
    units = pairs(2, dense)
    x1, x2 = images((4,)), 2 * images((4,))
    joined = ReversibleSequence(units)(tf.concat([x1, x2], axis=-1))
    y = ReversibleSequence(units)((x1, x2))
    assert isinstance(y, tuple)
    assert_same_bits([joined.numpy()], [tf.concat(y, axis=-1).numpy()])


def test_streams_stay_float32_in_a_mixed_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    x = keras.Input((8,), dtype="bfloat16")
    y = ReversibleSequence(pairs(2, dense))(x)
    model = keras.Model(x, y)
    assert y.dtype == model(tf.constant([[0.2] * 8])).dtype == "float32"
    assert model.layers[1].units[0].f.compute_dtype == "bfloat16"


@pytest.mark.slow
@both_ways
def test_gradients_of_shared_layers_are_summed(way):
    def model(memory):
        f, g = block(), block()
        return keras.Sequential([keras.Input(SHAPE), ReversibleSequence([(f, g), (g, f)], memory=memory)])

    assert_same_gradients(model, MEMORIES, images(), way)


def test_frozen_layers_get_no_gradient():
    def model(memory: str) -> keras.Model:
        units = pairs(2, dense)
        units[0][0].trainable = False
        return keras.Sequential([keras.Input((8,)), ReversibleSequence(units, memory=memory)])

    assert_same_gradients(model, MEMORIES, images((8,)))


@both_ways
def test_a_function_may_have_no_gradient(way):
    def model(memory: str) -> keras.Model:
        keras.utils.set_random_seed(1)
        return ReversibleSequence([(layers.Lambda(tf.stop_gradient), dense()), (dense(), dense())], memory=memory)

    assert_same_gradients(model, MEMORIES, images((8,)), way)


class Penalised(layers.Layer):
    """Adds a loss of its output, as mixtures of experts do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = dense(kernel_regularizer="l2")

    def call(self, x):
        y = self.inner(x)
        self.add_loss(keras.ops.sum(y**2))
        return y


@both_ways
def test_added_losses_and_regularizers_count(way):
    models = []

    def model(memory):
        models.append(ReversibleSequence(pairs(2, Penalised), memory=memory))
        return models[-1]

    found = assert_same_gradients(model, MEMORIES, images((8,)), way)
    if way == "eager":
        assert len(models[1].losses) == 8
        without = gradients(ReversibleSequence(pairs(2, dense)), images((8,)))[0]
        assert not np.array_equal(without[1], found[1])


class NoTrainingArgument(keras.Model):
    """Its batch norm takes `training` from the call around it."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = layers.BatchNormalization(), dense()

    def call(self, x):
        return self.out(self.norm(x))


def test_training_reaches_layers_inside_a_replay():
    keras.config.set_dtype_policy("float64")
    x = images((8,), dtype="float64")
    assert_same_gradients(lambda memory: ReversibleSequence(pairs(2, NoTrainingArgument), memory=memory), MEMORIES, x)


def test_tapes_may_ask_for_parts_and_again():
    x, model = images((8,)), ReversibleSequence(pairs(2, dense))
    complete, _ = gradients(model, x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.cast(model(x, training=True), tf.float64) ** 2)
    weights = [weight.value for weight in model.trainable_variables]
    assert_same_bits(complete[1:2], [tape.gradient(loss, x).numpy()])
    for _ in range(2):
        assert_same_bits(complete[2:], [each.numpy() for each in tape.gradient(loss, weights)])


def test_jacobian():
    x, units = images((8,), batch=2), pairs(2, dense)
    found = []
    for memory in MEMORIES:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ReversibleSequence(units, memory=memory)(x)
        found.append(tape.jacobian(y, x).numpy())
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "persistent"])
def test_a_gradient_from_outside_the_function(persistent):
    """TensorFlow then makes functions of their own for the gradient, and for a persistent tape of its gradient, too."""
    found = []
    for memory in MEMORIES:
        model = network(memory)
        forward = tf.function(lambda x, model=model: model(x, training=True))
        with tf.GradientTape(persistent=persistent) as tape:
            loss = tf.reduce_sum(forward(images()) ** 2)
        found.append([each.numpy() for each in tape.gradient(loss, [w.value for w in model.trainable_variables])])
    scale = max(np.max(np.abs(each)) for each in found[0])
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6 * scale)


@pytest.mark.slow
def test_export(tmp_path):
    model = network("reverse")
    model.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(loaded.serve(images()), model.predict(images(), verbose=0), atol=1e-6)


class Drawn(layers.Layer):
    """Draws from TensorFlow's own generator, which a second pass does not rewind."""

    def call(self, x):
        return tf.nn.dropout(x, 0.5)


@both_ways
def test_a_layer_that_draws_anew_in_the_second_pass_is_told(way):
    units = [(dense(), Drawn()), (dense(), dense())]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"row: a layer inside gave other(.|\n)*SeedGenerator"):
        gradients(ReversibleSequence(units, name="row"), images((8,)), way)
    seeded = [(dense(), layers.Dropout(0.5)), (dense(), dense())]
    for remedy in (ReversibleSequence(seeded), ReversibleSequence(units, memory="store")):
        assert all(np.isfinite(value).all() for value in gradients(remedy, images((8,)), way)[0])


@both_ways
@pytest.mark.parametrize("source", ["input", "weights"])
def test_a_second_derivative_is_refused(source, way):
    x, model = images((8,)), ReversibleSequence(pairs(2, dense))
    model(x)

    def penalty(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(model(x, training=True))
            slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(slope, x if source == "input" else [model.units[0].f.kernel.value])

    with pytest.raises(NotImplementedError, match="memory='store'"):
        WAYS[way](penalty)(x)


class Unseeded(layers.Layer):
    def call(self, x):
        return x + keras.random.normal(keras.ops.shape(x))


class Renorm(layers.Layer):
    """Assigns its trainable weight, as spectral normalisation does."""

    def build(self, shape):
        self.scale = self.add_weight(shape=())

    def call(self, x):
        self.scale.assign(self.scale * 0.5)
        return x * self.scale


def lends():
    outside = dense()
    outside.build((None, 4))
    return layers.Lambda(lambda x: outside(x))


REFUSED = {
    "wide": (lambda: Reversible(dense(5), dense()), r"makes \(None, 5\)|makes \(4, 5\)"),
    "function": (lambda: Reversible(tf.tanh, dense()), "Lambda"),
    "bits": (lambda: Reversible(dense(), dense(), snap_bits=-1), "snap_bits=-1"),
    "empty": (lambda: ReversibleSequence([]), "no unit"),
    "single": (lambda: ReversibleSequence([dense()]), r"units\[0\]"),
    "memory": (lambda: ReversibleSequence(pairs(1, dense), memory="recompute"), "neither"),
    "grids": (lambda: ReversibleSequence([Reversible(dense(), dense(), snap_bits=12)]), "the same numbers"),
    "unseeded": (lambda: ReversibleSequence([(Unseeded(), dense())]), "SeedGenerator"),
    "assigned": (lambda: ReversibleSequence([(Renorm(), dense())]), "assigns its weight"),
    "foreign": (lambda: ReversibleSequence([(lends(), dense())]), "not one of its weights"),
    "odd": (lambda: ReversibleSequence(pairs(1, dense))(tf.zeros([2, 7])), "even"),
    "unequal": (lambda: ReversibleSequence(pairs(1, dense))((tf.zeros([2, 4]), tf.zeros([2, 5]))), "equal shape"),
    "three": (lambda: ReversibleSequence(pairs(1, dense))((tf.zeros([2, 4]),) * 3), "equal shape"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        gradients(make(), images((8,)))


def test_config_keeps_what_is_shared():
    f, g = dense(), dense()
    layer = ReversibleSequence([(f, g), (f, f)], snap_bits=12, memory="store", name="row")
    layer.build((None, 8))
    copy = ReversibleSequence.from_config(layer.get_config())
    copy.build((None, 8))
    (a, b), (c, d) = copy.pairs
    assert a is c is d is not b
    assert (copy.snap_bits, copy.memory, copy.name) == (12, "store", "row")
    unit = Reversible.from_config(Reversible(f, f, snap_bits=0).get_config())
    assert unit.f is unit.g
    assert unit.snap_bits == 0


def test_a_layer_that_was_saved_with_16_bits_loads_and_works(tmp_path):
    model = network("reverse", snap_bits=16)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[2].snap_bits == 16
    assert_same_bits(gradients(model, images())[0], gradients(loaded, images())[0])


def test_clone_and_summary(capsys):
    model = network("reverse")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same_bits([model(images()).numpy()], [clone(images()).numpy()])
    clone.summary(expand_nested=True)
    assert "reversible_sequence" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fresh_process_loads_and_continues(tmp_path):
    # no dropout, as Keras does not save where a seed generator has arrived
    model = network("reverse", make=lambda: block(drop=0.0))
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    model.fit(images(), tf.ones([4, 3]), shuffle=False, verbose=0)
    assert_a_fresh_process_continues(model, images().numpy(), np.ones([4, 3]), tmp_path)


MIRRORED = """
import keras, tensorflow as tf
from tests.keras.programs import mirrored
strategy = mirrored()
from tests.keras.test_reversible import MEMORIES, network, images, assert_same_bits
found = []
for memory in MEMORIES:
    with strategy.scope():
        model = network(memory)
        model.compile(keras.optimizers.SGD(0.1), "mse")
    data = tf.data.Dataset.from_tensors((images(batch=8), tf.ones([8, 3]))).repeat(3)
    model.fit(data, verbose=0, shuffle=False)
    found.append(model.get_weights())
assert_same_bits(*found)
"""


@pytest.mark.slow
def test_mirrored_replicas():
    run_python("-c", MIRRORED)


@pytest.mark.slow
@both_ways
def test_memory_does_not_grow_with_the_units(way):
    x = images((32, 32, 16), batch=8)

    def peak(units):
        def make():
            return keras.Sequential([layers.BatchNormalization(), layers.Conv2D(8, 3, padding="same", use_bias=False)])

        model = ReversibleSequence(pairs(units, make))
        model(x)

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True) ** 2)
            weights = model.trainable_variables
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(1e-6 * gradient)

        step = WAYS[way](step)
        step()
        return bytes_asked_at_peak(step)

    assert peak(16) <= 1.02 * peak(4) + 24 * 4 * (9 * 64 + 16)
