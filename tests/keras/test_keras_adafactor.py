"""Adafactor as a Keras optimizer: the rule itself, everywhere Keras takes an optimizer, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import accumtrain.optim.adafactor
from accumtrain.keras import Accumulate, Adafactor
from accumtrain.keras.adafactor import PRESETS
from tests.keras.programs import assert_a_fresh_process_continues, run_python

SHAPES = [(5,), (6, 4), (6, 4, 5), (3, 5, 2, 4)]
DRAW = np.random.default_rng(0)
WEIGHTS = [DRAW.normal(size=shape) for shape in SHAPES]
GRADIENTS = [[DRAW.normal(size=shape) for shape in SHAPES] for _ in range(6)]
OPTIONS = {
    "default": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.1},
    "momentum of the update": {"momentum": 0.9, "momentum_of": "update", "factored_axes": "largest"},
    "decay of the step size": {"weight_decay": 0.1, "weight_decay_factor": "step_size", "clip_threshold": None},
    "bare decay": {"weight_decay": 1e-3, "weight_decay_factor": "one", "beta2": 0.99, "min_dim_size_to_factor": 5},
    "unscaled": {"scale_parameter": False},
    "unscaled warm-up": {"scale_parameter": False, "unscaled_relative_step": 0.5, "warmup_init": True},
}
DIGITS = DRAW.normal(size=(32, 6)).astype("float32")
LABELS = DIGITS[:, :1] * DIGITS[:, 1:2]


def model(optimizer, **compiled):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(8), keras.layers.Dense(1)]
    made = keras.Sequential([keras.Input((6,)), *layers])
    made.compile(optimizer=optimizer, loss="mse", **compiled)
    return made


def fitted(optimizer, epochs=2, batch=8, **compiled):
    """The weights after some updates in a fixed order."""
    made = model(optimizer, **compiled)
    made.fit(DIGITS, LABELS, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    return made.get_weights()


def assert_near(actual, expected, rtol=1e-5):
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.max(np.abs(want)))


def by_keras(options, dtype, way=lambda step: step):
    optimizer = Adafactor(**options)
    variables = [keras.Variable(weight, dtype=dtype) for weight in WEIGHTS]
    optimizer.build(variables)
    update = way(lambda *gradients: optimizer.apply(gradients))
    for gradients in GRADIENTS:
        update(*[tf.constant(each, dtype) for each in gradients])
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_updates_are_bitwise_those_of_the_other_door(options, dtype):
    other = accumtrain.optim.adafactor.Adafactor(**options)
    variables = [tf.Variable(weight, dtype=dtype) for weight in WEIGHTS]
    other.build(variables, [True] * len(variables))
    for done, gradients in enumerate(GRADIENTS):
        step = tf.constant(done, tf.int64)
        other.apply([tf.constant(each, dtype) for each in gradients], other.learning_rate(step), step)
    for got, want in zip(by_keras(options, dtype), variables, strict=True):
        np.testing.assert_array_equal(got, want.numpy(), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("jit", [None, pytest.param(True, marks=pytest.mark.xla)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_graph_makes_the_same_updates(options, jit):
    found = by_keras(options, "float32", lambda step: tf.function(step, jit_compile=jit, autograph=False))
    assert_near(found, by_keras(options, "float32"))


def test_the_state_is_factored():
    optimizer = Adafactor()
    optimizer.build([keras.Variable(weight) for weight in WEIGHTS])
    sizes = [5, 6 + 4, 6 * (4 + 5), 15 * (2 + 4)]
    assert sum(int(np.prod(slot.shape)) for slot in optimizer.variables) == sum(sizes) + 1  # the counter
    largest = Adafactor(1e-2, factored_axes="largest", min_dim_size_to_factor=5)
    largest.build([keras.Variable(weight) for weight in WEIGHTS])
    sizes = [5, 6 * 4, 4 * (6 + 5), 120]
    assert sum(int(np.prod(slot.shape)) for slot in largest.variables) == sum(sizes) + 2  # and the rate


@pytest.mark.slow
@pytest.mark.parametrize("jit", [None, pytest.param(True, marks=pytest.mark.xla)])
@pytest.mark.parametrize("preset", PRESETS)
def test_zero_gradients_move_nothing(preset, jit):
    optimizer = Adafactor.from_preset(preset, min_dim_size_to_factor=2, momentum=0.9, clip_threshold=None)
    variables = [keras.Variable(weight, dtype="float32") for weight in WEIGHTS]
    optimizer.build(variables)
    update = tf.function(lambda: optimizer.apply([tf.zeros(shape) for shape in SHAPES]), jit_compile=jit)
    for _ in range(3):
        update()
    for after, before in zip(variables, WEIGHTS, strict=True):
        np.testing.assert_array_equal(after.numpy(), before.astype("float32"))


def test_sparse_gradients_are_made_dense():
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 0]), tf.constant([4, 2]))
    found = []
    for gradient in (slices, tf.convert_to_tensor(slices)):
        optimizer, variable = Adafactor(), keras.Variable(np.ones((4, 2), "float32"))
        for _ in range(2):
            optimizer.apply([gradient], [variable])
        found.append(variable.numpy())
    np.testing.assert_array_equal(*found)
    assert (found[0][[1, 3]] == 1.0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiled", [{"run_eagerly": True}, pytest.param({"jit_compile": True}, marks=pytest.mark.xla)]
)
def test_fit_in_every_mode(compiled):
    assert_near(fitted(Adafactor(momentum=0.9), **compiled), fitted(Adafactor(momentum=0.9), jit_compile=False))


@pytest.mark.slow
def test_rates():
    """A float, a schedule and a callable of one value agree, and None is the relative step, counted by updates."""
    constant = keras.optimizers.schedules.PiecewiseConstantDecay([10**6], [1e-2, 1e-2])
    expected = fitted(Adafactor(1e-2))
    for rate in (constant, lambda: 1e-2):
        assert_near(fitted(Adafactor(rate)), expected)
    assert_near(fitted(Adafactor()), expected)  # 1e-2 until update 10,000
    assert float(Adafactor().learning_rate) == pytest.approx(1e-2)
    assert float(Adafactor(scale_parameter=False).learning_rate) == pytest.approx(5e-4)


@pytest.mark.slow
def test_keras_arguments_have_their_effect():
    plain = fitted(Adafactor(1e-2))
    for options in ({"clipvalue": 1e-3}, {"use_ema": True, "ema_momentum": 0.5}, {"weight_decay": 0.1}):
        assert any(np.any(a != b) for a, b in zip(fitted(Adafactor(1e-2, **options)), plain, strict=True))
    optimizer = Adafactor(1e-2, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["kernel", "bias"])
    assert_near(fitted(optimizer), plain)


def test_weight_decay_is_that_of_keras_with_the_factor_rate():
    variable, theirs = (keras.Variable(np.arange(1.0, 7.0, dtype="float32").reshape(2, 3)) for _ in range(2))
    Adafactor(1e-2, weight_decay=0.1).apply([tf.zeros([2, 3])], [variable])
    keras.optimizers.SGD(1e-2, weight_decay=0.1).apply([tf.zeros([2, 3])], [theirs])
    np.testing.assert_allclose(variable.numpy(), theirs.numpy(), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 1e-2])
def test_micro_batches_that_keras_accumulates_make_the_updates_of_the_whole(rate):
    split = fitted(Adafactor(rate, weight_decay=0.1, gradient_accumulation_steps=4), epochs=3)
    assert_near(split, fitted(Adafactor(rate, weight_decay=0.1), epochs=3, batch=32), rtol=1e-4)


def test_under_a_loss_scale():
    scaled = keras.optimizers.LossScaleOptimizer(Adafactor(1e-2, weight_decay=0.1), initial_scale=1024.0)
    assert_near(fitted(scaled), fitted(Adafactor(1e-2, weight_decay=0.1)))


def test_an_embedding_under_a_loss_scale():
    """Rows of an embedding have no static shape inside the conditional of a loss scale."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    words = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
    words.compile(keras.optimizers.LossScaleOptimizer(Adafactor(1e-2)), "mse")
    before = words.get_weights()[0].copy()
    words.fit(np.ones((8, 5), np.int32), np.ones((8, 3)), verbose=0)
    moved = np.abs(words.get_weights()[0] - before).sum(axis=1) > 0
    assert moved.tolist() == [row == 1 for row in range(9)]


MIRRORED = """
from tests.keras.programs import mirrored
strategy = mirrored()
from accumtrain.keras import Accumulate, Adafactor
from tests.keras.test_keras_adafactor import DIGITS, LABELS, assert_near, fitted, model
for wrap in (lambda inner: inner, lambda inner: Accumulate(inner, 2)):
    make = lambda: wrap(Adafactor(momentum=0.9, weight_decay=0.1, weight_decay_factor="step_size"))
    with strategy.scope():
        made = model(make())
    made.fit(DIGITS, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_near(made.get_weights(), fitted(make()), rtol=1e-4)
    for weight in made.weights:
        first, second = (copy.numpy() for copy in weight.value.values)
        assert (first == second).all()
"""


@pytest.mark.slow
def test_two_replicas_make_the_updates_of_one():
    run_python("-c", MIRRORED)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adafactor(),
        Adafactor(1e-2, momentum=0.5, clipnorm=1.0, use_ema=True, name="mine"),
        Adafactor(keras.optimizers.schedules.CosineDecay(1e-2, 10), beta2=0.9, clip_threshold=None),
        *map(Adafactor.from_preset, PRESETS),
    ],
    ids=["default", "float", "schedule", *PRESETS],
)
def test_it_survives_a_round_trip(optimizer):
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is Adafactor
    assert again.get_config() == optimizer.get_config()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"learning_rate": 1e-2, "momentum": 0.9, "weight_decay": 0.1}])
def test_a_saved_model_continues_bit_for_bit_in_another_process(tmp_path, options):
    made = model(Adafactor(**options))
    made.fit(DIGITS, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_a_fresh_process_continues(made, DIGITS, LABELS, tmp_path, batch=8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factored_axes": "first"}, "factored_axes=first: no such choice; choose from last, largest"),
        ({"momentum_of": "gradient"}, "choose from change, update"),
        ({"weight_decay_factor": "none"}, "weight_decay_factor=none: no such choice; did you mean one"),
        ({"momentum": 1.0}, "momentum=1.0: must be at least 0 and below 1"),
        ({"beta2": 1.0}, "beta2=1.0"),
        ({"epsilon1": 0.0}, "epsilon1=0.0"),
        ({"clip_threshold": 0.0}, "clip_threshold=0.0"),
        ({"min_dim_size_to_factor": 0}, "min_dim_size_to_factor=0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0: must be at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay=nan: must be at least 0"),
        ({"unscaled_relative_step": 0.0}, "unscaled_relative_step=0.0: must be above 0"),
        ({"epsilon2": float("inf")}, "epsilon2=inf"),
        ({"epsilon1": 1e-46}, "epsilon1=1e-46: must be between"),
        ({"min_dim_size_to_factor": 2**63}, "must be a number of at most 64 bits"),
        ({"warmup_init": True, "learning_rate": 1e-2}, "learning_rate=0.01: only the relative step warms up"),
    ],
)
@pytest.mark.parametrize("kind", [Adafactor, accumtrain.optim.adafactor.Adafactor], ids=["keras", "library"])
def test_a_mistake_is_named(kind, options, says):
    with pytest.raises(ValueError, match=says):
        kind(**options)


def test_an_unknown_argument_is_named():
    with pytest.raises(ValueError, match="beta_2"):
        Adafactor(beta_2=0.9)


@pytest.mark.parametrize("rate", [None, lambda: 0.5], ids=["relative step", "callable"])
@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: Accumulate(inner, 2)], ids=["bare", "Accumulate"])
def test_a_rate_without_a_variable_can_not_be_set(rate, wrap):
    optimizer = wrap(Adafactor(rate))
    with pytest.raises(TypeError, match=r"learning_rate=0.1: .*make it with a number, Adafactor\(0.1\)"):
        optimizer.learning_rate = 0.1
    optimizer.learning_rate = lambda: 0.25
    assert float(optimizer.learning_rate) == 0.25


def test_a_given_rate_can_be_set():
    optimizer = Adafactor(1e-2)
    optimizer.learning_rate = 0.1
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    schedule = keras.optimizers.schedules.CosineDecay(0.5, 10)
    optimizer.learning_rate = schedule
    assert float(optimizer.learning_rate) == 0.5
    with pytest.raises(TypeError, match="LearningRateSchedule"):  # Keras's own
        optimizer.learning_rate = 0.1


def test_an_unknown_preset_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"preset='fairseq'.* paper, optax, huggingface, bojone"):
        Adafactor.from_preset("fairseq")


def test_half_precision_weights_are_refused():
    with pytest.raises(ValueError, match="float16"):
        Adafactor().build([keras.Variable(np.ones(3), dtype="float16")])
