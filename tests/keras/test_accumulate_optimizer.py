"""`Accumulate`: what it is to its user beside the updates it makes, which tests/keras/test_matrix.py compares."""

import warnings
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.keras import Accumulate, Adafactor
from tests.keras.gradients import unchanged
from tests.keras.programs import assert_a_fresh_process_continues

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(48, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 48)


def model_with(optimizer: keras.optimizers.Optimizer, constraint: Any = None, **compiled: object) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3, kernel_constraint=constraint)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(optimizer, LOSS, **compiled)
    return model


def fit(model: keras.Model, count: int, batch: int = 4, start: int = 0) -> keras.Model:
    model.fit(X[start : start + count], Y[start : start + count], batch_size=batch, shuffle=False, verbose=0)
    return model


def assert_equal(first: list[np.ndarray], second: list[np.ndarray], rtol: float = 1e-6) -> None:
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-7)


def test_weights_stay_until_the_window_is_full():
    model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4, at_end="flush"))
    start = model.get_weights()
    with unchanged(model.weights):
        for number in range(3):
            model.train_on_batch(X[:4], Y[:4])
            assert model.optimizer.micro_step.numpy() == number + 1
    model.train_on_batch(X[:4], Y[:4])
    assert model.optimizer.micro_step.numpy() == 0
    assert not any(np.array_equal(*pair) for pair in zip(start, model.get_weights(), strict=True))


def test_iterations_count_updates_and_schedules_see_them():
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.25])
    model = fit(model_with(Accumulate(keras.optimizers.SGD(rates), 4)), 48)
    assert model.optimizer.iterations.numpy() == 3
    assert float(model.optimizer.learning_rate) == 0.25


def test_sum_is_the_mean_times_the_steps():
    by_sum = fit(model_with(Accumulate(keras.optimizers.SGD(0.01), 4, "sum")), 48)
    by_mean = fit(model_with(Accumulate(keras.optimizers.SGD(0.04), 4)), 48)
    assert_equal(by_sum.get_weights(), by_mean.get_weights())


def test_a_window_goes_on_in_the_next_fit():
    model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4))
    with pytest.warns(UserWarning, match="2 of the 4 micro-batches of an update wait for the next fit"):
        fit(model, 24)
    fit(model, 24, start=24)
    whole = fit(model_with(Accumulate(keras.optimizers.Adam(1e-2), 4)), 48)
    assert_equal(model.get_weights(), whole.get_weights(), rtol=0)


def test_flush_makes_the_update_of_what_there_is():
    model = fit(model_with(Accumulate(keras.optimizers.SGD(0.1), 4, at_end="flush")), 24)  # windows of 16 and 8
    reference = fit(model_with(keras.optimizers.SGD(0.1)), 16, batch=16)
    fit(reference, 8, batch=8, start=16)
    assert model.optimizer.iterations.numpy() == 2
    assert_equal(model.get_weights(), reference.get_weights())
    assert model.optimizer.flush() == 0
    assert model.optimizer.iterations.numpy() == 2


def test_attributes_are_those_of_the_optimizer():
    inner = keras.optimizers.Adam(1e-2, beta_1=0.8, weight_decay=0.1)
    optimizer = Accumulate(inner, 4)
    assert (optimizer.beta_1, optimizer.weight_decay, optimizer.clipnorm, optimizer.steps) == (0.8, 0.1, None, 4)
    optimizer.learning_rate = 0.5
    optimizer.beta_1 = 0.7
    optimizer.weight_decay = 0.2
    assert (float(inner.learning_rate), inner.beta_1, inner.weight_decay) == (0.5, 0.7, 0.2)
    with pytest.raises(AttributeError, match="bet_1"):
        _ = optimizer.bet_1


def test_variables_are_spared_from_weight_decay_as_by_the_optimizer():
    optimizer = Accumulate(keras.optimizers.AdamW(0.1, weight_decay=0.5), np.int64(1))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    variables = [keras.Variable(np.ones(2), name=name) for name in ("kernel", "bias")]
    optimizer.apply([tf.zeros(2)] * 2, variables)
    np.testing.assert_allclose([variable.numpy() for variable in variables], [[0.95, 0.95], [1.0, 1.0]], rtol=1e-6)


def test_averages_and_constraints_act_once_per_update():
    unit = keras.constraints.UnitNorm()
    arguments = {"learning_rate": 0.1, "use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    model = fit(model_with(Accumulate(keras.optimizers.SGD(**arguments), 4), unit), 48)
    reference = fit(model_with(keras.optimizers.SGD(**arguments), unit), 48, batch=16)
    assert_equal(model.get_weights(), reference.get_weights())


def test_an_embedding_adds_only_its_rows():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(1000, 4), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,), dtype="int32"), *layers])
    model.compile(Accumulate(keras.optimizers.SGD(0.1), 2), LOSS)
    model.build((None, 5))
    words = DRAW.integers(0, 10, (8, 5))
    model.train_on_batch(words[:4], Y[:4])
    rows = np.abs(model.optimizer.buffers[0].numpy()).sum(axis=1) > 0
    assert set(np.flatnonzero(rows)) == set(words[:4].ravel())


@pytest.mark.parametrize("arguments", [{"run_eagerly": True}, {"steps_per_execution": 5}], ids=str)
def test_eager_steps_and_several_in_one_call_are_the_same(arguments):
    other = fit(model_with(Accumulate(keras.optimizers.Adam(1e-2), 3), **arguments), 48)
    graph = fit(model_with(Accumulate(keras.optimizers.Adam(1e-2), 3)), 48)
    assert_equal(other.get_weights(), graph.get_weights(), rtol=1e-5)


@pytest.mark.parametrize("wrapped", [True, False], ids=["LossScaleOptimizer", "policy"])
def test_an_overflow_drops_the_window_and_halves_the_scale(policy, wrapped):
    policy("mixed_float16")
    inner = keras.optimizers.SGD(0.1)
    optimizer = Accumulate(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0) if wrapped else inner, 2)
    model = model_with(optimizer)
    assert model.optimizer is optimizer
    start, scale = model.get_weights(), 8.0 if wrapped else 2.0**15
    with unchanged(model.weights):
        model.train_on_batch(X[:4], Y[:4])
        model.train_on_batch(np.full_like(X[:4], np.inf), Y[:4])
    assert (optimizer.dynamic_scale.numpy(), optimizer.iterations.numpy()) == (scale / 2, 0)
    model.train_on_batch(X[:4], Y[:4])
    model.train_on_batch(X[:4], Y[:4])
    assert (optimizer.micro_step.numpy(), optimizer.iterations.numpy()) == (0, 1)
    assert not np.array_equal(start[0], model.get_weights()[0])


def test_the_scale_grows_by_updates(policy):
    policy("mixed_float16")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0, dynamic_growth_steps=2)
    model = fit(model_with(Accumulate(scaled, 4)), 48)  # 3 updates
    assert (model.optimizer.dynamic_scale.numpy(), model.optimizer.step_counter.numpy()) == (4.0, 1)


def test_float16_without_a_scale_is_refused(policy):
    optimizer = Accumulate(keras.optimizers.SGD(0.1), 2)
    policy("mixed_float16")
    model = model_with(optimizer)
    policy("float32")
    with pytest.raises(ValueError, match="computes in float16"):
        fit(model, 8)


def test_buffers_of_half_precision_weights_are_float32(policy):
    policy("bfloat16")
    model = fit(model_with(Accumulate(keras.optimizers.SGD(0.1), 2)), 8)
    assert {buffer.dtype for buffer in model.optimizer.buffers} == {"float32"}


@pytest.mark.parametrize("factor", [None, 1024.0])
def test_adaptive_clipping_bounds_each_unit(factor):
    model = model_with(Accumulate(keras.optimizers.SGD(1.0, loss_scale_factor=factor), 2, adaptive_clip=0.01))
    before = model.get_weights()
    fit(model, 8)
    for old, new in zip(before, model.get_weights(), strict=True):
        axis = 0 if old.ndim > 1 else None
        moved, size = np.linalg.norm(new - old, axis=axis), np.linalg.norm(old, axis=axis)
        np.testing.assert_allclose(moved, 0.01 * np.maximum(size, 1e-3), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*micro-batches of an update wait")
@pytest.mark.parametrize("open_window", [True, False])
def test_a_saved_model_goes_on_in_a_fresh_process(tmp_path, open_window):
    first = 24 if open_window else 32
    model = fit(model_with(Accumulate(keras.optimizers.AdamW(1e-2), 4)), first)
    assert_a_fresh_process_continues(model, X[first:], Y[first:], tmp_path)


def test_training_that_was_killed_goes_on_with_its_window(tmp_path):
    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if self.model.optimizer.iterations.numpy() == 3:  # an epoch is 2.4 windows
                raise SystemExit

    def run(*callbacks: keras.callbacks.Callback) -> list[np.ndarray]:
        model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 5, at_end="flush"))
        model.fit(X, Y, batch_size=4, shuffle=False, epochs=2, verbose=0, callbacks=list(callbacks))
        return model.get_weights()

    with pytest.raises(SystemExit):
        run(keras.callbacks.BackupAndRestore(str(tmp_path)), Kill())
    assert_equal(run(keras.callbacks.BackupAndRestore(str(tmp_path))), run(), rtol=0)


def test_a_checkpoint_of_tensorflow_holds_the_window(tmp_path):
    model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4))
    model.train_on_batch(X[:4], Y[:4])
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "state"))
    other = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4))
    other.optimizer.build(other.trainable_variables)
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path).assert_existing_objects_matched()
    for each in (model, other):
        fit(each, 12, start=4)
    assert other.optimizer.iterations.numpy() == 1
    assert_equal(model.get_weights(), other.get_weights(), rtol=0)


def test_the_configuration_is_kept():
    optimizer = Accumulate(keras.optimizers.Adam(1e-2, beta_1=0.8), 4, "sum", at_end="flush", adaptive_clip=0.1)
    copy = Accumulate.from_config(optimizer.get_config())
    assert copy.get_config() == optimizer.get_config()
    assert (copy.steps, copy.reduction, copy.at_end, copy.adaptive_clip, copy.beta_1) == (4, "sum", "flush", 0.1, 0.8)


def test_a_model_is_saved_before_its_first_step(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(Accumulate("adam", 4), "mse")
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer 'adam"):  # as without Accumulate
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.optimizer.steps, int(loaded.optimizer.micro_step.numpy())) == (4, 0)


def test_a_window_can_be_dropped():
    model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4), jit_compile=False)
    optimizer, start = model.optimizer, model.get_weights()
    assert optimizer.drop() == 0
    for number in range(3):
        model.train_on_batch(X[number : number + 4], Y[number : number + 4])
    assert (optimizer.drop(), optimizer.drop(), int(optimizer.iterations)) == (3, 0, 0)
    assert_equal(start, model.get_weights(), rtol=0)
    fresh = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4), jit_compile=False)
    for each in (model, fresh):
        fit(each, 16)
    assert_equal(model.get_weights(), fresh.get_weights(), rtol=0)


SAVED_UNDER = {
    "adam": keras.optimizers.Adam,
    "sgd": lambda: keras.optimizers.SGD(momentum=0.9),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "accumulate": lambda: Accumulate("adam", 4),
    "accumulate with a loss scale": lambda: Accumulate(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 4),
}


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize(
    "name", [name if "loss" not in name else pytest.param(name, marks=pytest.mark.slow) for name in SAVED_UNDER]
)
def test_weights_of_any_optimizer_are_loaded(name, built, tmp_path):
    model = model_with(SAVED_UNDER[name](), jit_compile=False)
    model.train_on_batch(X[:4], Y[:4])
    model.save_weights(tmp_path / "saved.weights.h5")
    other = model_with(Accumulate("adam", 4), jit_compile=False)
    if built:
        other.optimizer.build(other.trainable_variables)
    same = name == "accumulate" and built
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_weights(tmp_path / "saved.weights.h5")
    skipped = any("Skipping variable loading for optimizer 'accumulate" in str(each.message) for each in caught)
    assert skipped is not same
    assert_equal(model.get_weights(), other.get_weights(), rtol=0)
    assert int(other.optimizer.micro_step.numpy()) == same if built else not other.optimizer.built


@pytest.mark.parametrize(
    "wrapped", [pytest.param(tf.function, marks=pytest.mark.slow), lambda step: step], ids=["graph", "eager"]
)
@pytest.mark.parametrize("inner", [keras.optimizers.Adam, Adafactor], ids=lambda kind: kind.__name__)
def test_plain_variables_in_a_loop_of_ones_own(inner, wrapped):
    def trained(optimizer: keras.optimizers.Optimizer, batch: int) -> list[np.ndarray]:
        draw = np.random.default_rng(1)
        variables = [tf.Variable(draw.normal(size=shape)) for shape in ((6, 8), (8, 3), (3,))]

        @wrapped
        def step(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                outputs = tf.tanh(x @ variables[0]) @ variables[1] + variables[2]
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs))
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        for start in range(0, 48, batch):
            step(tf.constant(X[start : start + batch], tf.float64), tf.constant(Y[start : start + batch]))
        return [variable.numpy() for variable in variables]

    options = {"learning_rate": 0.1, "clipnorm": 0.5, "weight_decay": 0.01}
    assert_equal(trained(Accumulate(inner(**options), 4), 4), trained(inner(**options), 16), rtol=1e-10)


def test_adafactor_of_plain_variables_is_that_of_keras_variables():
    def trained(kind: type) -> list[np.ndarray]:
        optimizer, draw = Adafactor(), np.random.default_rng(1)
        variables = [kind(draw.normal(size=shape).astype(np.float32)) for shape in ((6, 8), (8,))]
        for _ in range(3):
            gradients = [tf.constant(draw.normal(size=each.shape), tf.float32) for each in variables]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return [variable.numpy() for variable in variables]

    assert_equal(trained(tf.Variable), trained(keras.Variable), rtol=0)


@pytest.mark.parametrize(
    ("optimizer", "arguments", "message"),
    [
        ("sgd", {"steps": 0}, "steps=0"),
        ("sgd", {"steps": True}, "steps=True"),
        ("sgd", {"steps": 2.0}, "steps=2.0"),
        ("sgd", {"reduction": "median"}, "reduction='median': must be mean or sum"),
        *(("sgd", {"adaptive_clip": ratio}, "adaptive_clip=") for ratio in (None, "0.1", -0.1, float("nan"))),
        (Accumulate("sgd", 2), {}, "accumulates already"),
        (keras.optimizers.SGD(gradient_accumulation_steps=2), {}, "accumulates already"),
        (keras.optimizers.LossScaleOptimizer(Accumulate("sgd", 2)), {}, "accumulates already"),
        (3, {}, "Could not interpret optimizer"),
    ],
)
def test_mistakes_are_refused(optimizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        Accumulate(optimizer, **{"steps": 2, **arguments})


def test_other_variables_in_the_same_window_are_refused():
    optimizer, variables = Accumulate(keras.optimizers.SGD(0.1), 2), [keras.Variable([1.0]), keras.Variable([1.0])]
    optimizer.build(variables)
    optimizer.apply([tf.ones([1])], variables[:1])
    with pytest.raises(ValueError, match="other variables have gradients"):
        optimizer.apply([tf.ones([1])], variables[1:])


def test_gradients_of_nothing_are_refused():
    optimizer = Accumulate(keras.optimizers.SGD(0.1), 2)
    with pytest.raises(ValueError, match="has no variables yet: give apply"):
        optimizer.apply([tf.ones([1])])
    with pytest.raises(ValueError, match="no variable has a gradient"):
        optimizer.apply([None], [keras.Variable([1.0])])


# --- the warning where a number that depends on the examples divides the loss -----------------------------------------


WORDS = DRAW.integers(1, 9, (16, 5)) * (np.arange(5) < DRAW.integers(1, 6, (16, 1)))
VECTORS, KINDS = DRAW.normal(size=(16, 5, 6)).astype(np.float32), DRAW.integers(0, 3, (16, 5))
WEIGHTS = DRAW.uniform(0.1, 2.0, (16, 5)).astype(np.float32)


def words() -> keras.Model:
    embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    return keras.Sequential([keras.Input((5,), dtype="int32"), embedding, keras.layers.Dense(3)])


def attention() -> keras.Model:
    """Softmax, layer normalisation and a mean over time divide, but not the loss."""
    inputs = keras.Input((5, 6))
    hidden = keras.layers.LayerNormalization()(keras.layers.MultiHeadAttention(2, 4)(inputs, inputs))
    return keras.Model(inputs, keras.layers.Dense(3, kernel_regularizer="l2")(hidden))


DIVISORS: dict[str, tuple[Any, Any, dict[str, Any], Any, bool]] = {  # the last: it warns
    "a mask": (words, WORDS, {}, None, True),
    "ignore_class": (attention, VECTORS, {"ignore_class": 0}, None, True),
    "weights that divide": (attention, VECTORS, {"reduction": "mean_with_sample_weight"}, WEIGHTS, True),
    "weights": (attention, VECTORS, {}, WEIGHTS, False),
    "a sum over a mask": (words, WORDS, {"reduction": "sum"}, None, False),
    "a mask in a sum of updates": (words, WORDS, {"window": "sum"}, None, False),
}
SLOW = ("ignore_class", "weights that divide", "a sum over a mask")


def train(build: Any, x: Any, weights: Any = None, window: str = "mean", **options: Any) -> None:
    keras.utils.set_random_seed(1)
    model, loss = build(), keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
    model.compile(Accumulate("sgd", 4, window), loss, jit_compile=False)
    model.fit(x, KINDS, sample_weight=weights, batch_size=4, shuffle=False, verbose=0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in DIVISORS],
)
def test_the_warning(name):
    build, x, options, weights, is_warned = DIVISORS[name]
    message = "counts each micro-batch alike.*use accumtrain.keras.accumulate"
    with pytest.warns(UserWarning, match=message) if is_warned else nullcontext():
        train(build, x, weights, **options)
