"""`accumulate(model)`: what a step of `fit` in micro-batches is, beside the updates compared in test_matrix.py."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.keras import accumulate
from tests.keras.cases import Hasty
from tests.keras.gradients import unchanged
from tests.keras.small_models import SMALL_MODELS

LOSS = keras.losses.SparseCategoricalCrossentropy
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 40)
WEIGHTS = DRAW.uniform(0.1, 2.0, 40).astype(np.float32)
WORDS = DRAW.integers(1, 9, (40, 5)) * (np.arange(5) < DRAW.integers(1, 6, (40, 1)))
KINDS = DRAW.integers(0, 3, (40, 5))  # one for each word
ONE_HOT = np.eye(3, dtype=np.float32)[Y]


def model_of(*layers: keras.layers.Layer) -> keras.Sequential:
    layers = layers or (keras.layers.Dense(8, activation="tanh"),)
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def masked_lstm() -> keras.Model:
    layers = [keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.LSTM(4, return_sequences=True)]
    return keras.Sequential([keras.Input((5,), dtype="int32"), *layers, keras.layers.Dense(3)])


def two_outputs() -> keras.Model:
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(inputs, [keras.layers.Dense(3, name=name)(hidden) for name in ("left", "right")])


def pair(
    build: Any = model_of, steps: int = 4, rate: float = 0.1, say: str | None = None, **compiled: Any
) -> tuple[keras.Model, keras.Model]:
    """The same model with and without micro-batches, compiled alike; what is said of the loss is `say`."""
    models = []
    for split in (True, False):
        keras.utils.set_random_seed(3)
        model = build()
        arguments = {"loss": LOSS(from_logits=True), **compiled}
        model.compile(keras.optimizers.SGD(rate), **arguments)
        models.append(accumulate(model, steps, loss=say) if split else model)
    return models[0], models[1]


def assert_same(split: keras.Model, whole: keras.Model, rtol: float = 1e-5) -> None:
    for a, b in zip(split.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


def assert_same_fit(models: tuple[keras.Model, keras.Model], *data: Any, batch: int = 16, **arguments: Any) -> None:
    arguments = {"batch_size": batch, "shuffle": False, "verbose": 0, "epochs": 2, **arguments}
    found, expected = (model.fit(*data, **arguments).history for model in models)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert_same(*models)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3, 16, 100], ids=str)
def test_every_number_of_micro_batches_is_the_whole_batch(steps):
    assert_same_fit(pair(steps=steps, metrics=["accuracy"]), X, Y)  # batches of 16, 16 and 8


def test_example_weights_and_weighted_metrics():
    assert_same_fit(pair(metrics=["accuracy"], weighted_metrics=["accuracy"]), X, Y, sample_weight=WEIGHTS)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_reductions_of_the_loss(reduction):
    def build() -> keras.Model:
        return model_of(keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1)))

    models = pair(build, rate=0.01, loss=LOSS(from_logits=True, reduction=reduction))
    assert_same_fit(models, X, Y, sample_weight=WEIGHTS)


def test_losses_of_different_reductions_are_refused():
    losses = [LOSS(from_logits=True), LOSS(from_logits=True, reduction="sum")]
    split, _ = pair(two_outputs, loss=losses)
    with pytest.raises(ValueError, match='give all losses the same, or say loss="batch"'):
        split.fit(X, [Y, Y], verbose=0)
    assert_same_fit(pair(two_outputs, rate=0.01, say="batch", loss=losses), X, [Y, Y])  # as the message says


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [None, 1])
def test_masked_and_ignored_values_count_in_the_batch_as_a_whole(ignored):
    loss = LOSS(from_logits=True, ignore_class=ignored)
    assert_same_fit(pair(masked_lstm, loss=loss), WORDS, KINDS)


def test_several_inputs_and_outputs_by_name():
    small = SMALL_MODELS["two_inputs_and_outputs"]
    models = pair(small.build, loss=small.loss, loss_weights={"kind": 1.0, "size": 0.3})
    assert_same_fit(models, small.inputs(DRAW), small.targets(DRAW))


def test_moving_statistics_are_those_of_the_whole_batch():
    split, whole = pair(lambda: model_of(keras.layers.BatchNormalization(momentum=0.7)), rate=0.0)
    for model in (split, whole):
        model.fit(3 * X + 1, Y, batch_size=40, epochs=3, verbose=0)
    statistics = [model.layers[0].non_trainable_variables[:2] for model in (split, whole)]
    for ours, keras_own in zip(*statistics, strict=True):
        np.testing.assert_allclose(ours.numpy(), keras_own.numpy(), rtol=1e-5)


def test_batch_norm_that_is_not_trained_stays_as_it_is():
    class Frozen(keras.layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.by_flag = keras.layers.BatchNormalization(moving_mean_initializer="ones", trainable=False)
            self.by_call = keras.layers.BatchNormalization(moving_mean_initializer="ones")

        def call(self, inputs: Any) -> Any:
            return self.by_call(self.by_flag(inputs), training=False)

    models = pair(lambda: model_of(Frozen()))
    assert_same_fit(models, X, Y)
    for layer in (models[0].layers[0].by_flag, models[0].layers[0].by_call):
        assert (layer.moving_mean.numpy() == 1.0).all()


def test_dropout_is_drawn_for_each_micro_batch():
    seen: list[np.ndarray] = []

    class Look(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            tf.py_function(lambda mask: seen.append(mask.numpy()), [inputs], [])
            return inputs

    keras.utils.set_random_seed(3)
    model = accumulate(model_of(keras.layers.Dropout(0.5, seed=1), Look()), 2)
    model.compile("sgd", LOSS(from_logits=True))
    model.train_on_batch(np.ones_like(X[:8]), Y[:8])
    model.train_on_batch(np.ones_like(X[:8]), Y[:8])
    assert [mask.shape for mask in seen] == [(4, 6)] * 4
    assert not any(np.array_equal(a, b) for place, a in enumerate(seen) for b in seen[:place])


@pytest.mark.slow
def test_a_model_is_compiled_before_or_after_and_other_steps_take_effect_after_a_fit():
    before, whole = pair()
    after = keras.models.clone_model(before)
    after.set_weights(before.get_weights())
    accumulate(after, 4).compile(keras.optimizers.SGD(0.1), LOSS(from_logits=True))
    assert_same_fit((before, whole), X, Y)
    after.fit(X, Y, batch_size=16, shuffle=False, verbose=0, epochs=2)
    assert_same(after, whole)
    assert_same_fit((accumulate(before, 2), whole), X, Y)


def test_a_data_set_of_tensorflow_and_single_batches():
    split, whole = pair()
    for model in (split, whole):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), shuffle=False, verbose=0)
        model.train_on_batch(X[:7], Y[:7])
    assert_same(split, whole)


@pytest.mark.slow
@pytest.mark.xla
@pytest.mark.parametrize("steps", [1, 3])
def test_a_ragged_batch_with_xla(steps):
    assert_same_fit(pair(steps=steps, jit_compile=True), X, Y)


def test_variables_of_nobody_are_refused():
    counter = keras.Variable(0.0)

    class Counting(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            counter.assign(counter + 1.0)
            return inputs

    model = accumulate(model_of(Counting()), 2)
    model.compile("sgd", LOSS(from_logits=True))
    with pytest.raises(ValueError, match="changes a variable that is not its own"):
        model.train_on_batch(X[:4], Y[:4])


@pytest.mark.parametrize("steps", [0, 2.0, "auto4"], ids=str)
def test_steps_are_a_whole_number(steps):
    with pytest.raises(ValueError, match="steps="):
        accumulate(model_of(), steps)


@pytest.mark.filterwarnings("ignore:`model.predict`")
@pytest.mark.parametrize(("say", "sizes"), [("mean", [4, 4, 4, 4, 16]), (None, [16, 16])])
def test_eager_steps_are_the_same_and_call_a_loss_once_for_each_part(say, sizes):
    calls: list[int] = []

    def own(y_true: Any, y_pred: Any) -> Any:
        calls.append(y_pred.shape[0])
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)

    models = pair(steps=np.int64(4), say=say, loss=own, run_eagerly=True)
    for _ in range(2):
        calls.clear()
        split, whole = (model.train_on_batch(X[:16], Y[:16]) for model in models)
        np.testing.assert_allclose(split, whole, rtol=1e-5)
    assert calls == sizes  # the last is that of plain Keras
    assert_same(*models)


@pytest.mark.slow
def test_a_loss_that_can_not_be_hashed():
    class Own(keras.losses.Loss):
        __hash__ = None

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)

    assert_same_fit(pair(loss=Own()), X, Y)


def test_a_model_without_trained_weights_learns_nothing():
    model = model_of(keras.layers.Dense(3))
    model.trainable = False
    model.compile("sgd", LOSS(from_logits=True))
    warns = pytest.warns(UserWarning, match="has no trainable weight, so nothing is learned")
    with unchanged(model.weights), warns:
        accumulate(model, 2).train_on_batch(X[:4], Y[:4])


def test_a_loss_that_depends_on_no_weight_is_refused():
    split, _ = pair(loss=lambda y_true, y_pred: keras.ops.sum(keras.ops.stop_gradient(y_pred), axis=-1), say="mean")
    with pytest.raises(ValueError, match="no variable has a gradient"):
        split.train_on_batch(X[:4], Y[:4])


@pytest.mark.parametrize("divides", ["mask", "weights"])
def test_losses_of_layers_beside_masks_or_weights_that_divide_are_refused(divides):
    def build() -> keras.Model:
        first = keras.layers.Masking() if divides == "mask" else keras.layers.Identity()
        dense = keras.layers.Dense(3, activity_regularizer="l1", kernel_regularizer="l2")
        return keras.Sequential([keras.Input((5, 2)), first, dense])

    reduction = "sum_over_batch_size" if divides == "mask" else "mean_with_sample_weight"
    split, _ = pair(build, loss=LOSS(from_logits=True, reduction=reduction))
    weights = {} if divides == "mask" else {"sample_weight": WEIGHTS.reshape(8, 5)}
    x, y = DRAW.normal(size=(8, 5, 2)).astype(np.float32), DRAW.integers(0, 3, (8, 5))
    with pytest.raises(ValueError, match=r"count by examples.* give the loss the reduction 'sum'"):
        split.train_on_batch(x, y, **weights)
    models = pair(build, rate=0.01, loss=LOSS(from_logits=True, reduction="sum"), jit_compile=False)
    assert_same_fit(models, x, y, batch=8, **weights)


def test_several_losses_with_masks_are_refused_and_their_sums_are_exact():
    def build() -> keras.Model:
        words = keras.Input((5,), dtype="int32")
        embedded = keras.layers.Embedding(9, 4, mask_zero=True)(words)
        return keras.Model(words, [keras.layers.Dense(3, name=name)(embedded) for name in ("left", "right")])

    words, targets = WORDS[:16], [KINDS[:16], KINDS[16:32]]
    split, _ = pair(build, loss=[LOSS(from_logits=True)] * 2)
    with pytest.raises(ValueError, match=r"several losses with masks.*give them the reduction 'sum'"):
        split.train_on_batch(words, targets)
    models = pair(build, rate=0.01, loss=[LOSS(from_logits=True, reduction="sum")] * 2, jit_compile=False)
    assert_same_fit(models, words, targets)


def test_targets_that_a_loss_leaves_out_do_not_count_in_the_batch() -> None:
    assert_same_fit(pair(loss=LOSS(from_logits=True, ignore_class=0)), X, Y)


class Squares(keras.losses.Loss):
    """The mean of a whole batch."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.mean(y_pred)


def masked_mean(y_true: Any, y_pred: Any) -> Any:
    kept = keras.ops.cast(y_true >= 0, "float32")
    return keras.ops.sum(kept * keras.ops.square(y_true - y_pred)) / keras.ops.sum(kept)


def ignoring(mark: float) -> Any:
    def loss(y_true: Any, y_pred: Any) -> Any:
        left = keras.ops.isnan(y_true) if np.isnan(mark) else y_true == mark
        errors = keras.ops.where(left, 0.0, keras.ops.square(y_pred - keras.ops.where(left, 0.0, y_true)))
        return keras.ops.sum(errors) / keras.ops.sum(keras.ops.cast(~left, "float32"))

    return loss


OWN_MEANS = [Squares(), lambda y, p: keras.ops.mean(keras.ops.abs(y - p))]


@pytest.mark.parametrize("loss", OWN_MEANS)
@pytest.mark.parametrize("say", ["mean", "batch"])
def test_own_losses_that_are_means(loss: Any, say: str) -> None:
    assert_same_fit(pair(loss=loss, say=say), X, ONE_HOT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        lambda y, p: keras.ops.sum(keras.ops.abs(y - p)),
        masked_mean,
        Squares(reduction="sum"),
        OwnCall(),
        keras.losses.Dice(axis=0),
        keras.losses.Dice(axis=1),
        lambda y, p: keras.ops.mean(p - y, -1) / keras.ops.max(p),
        ignoring(-100.0),
        ignoring(float("nan")),
    ],
)
def test_losses_that_are_no_means_are_those_of_the_whole_batch(loss: Any) -> None:
    targets = np.where(X[:, :3] > 1.0, -100.0, ONE_HOT) if getattr(loss, "__name__", "") == "loss" else ONE_HOT
    assert_same_fit(pair(rate=0.001, loss=loss), X, targets)


def test_a_sum_that_is_declared_is_exact() -> None:
    assert_same_fit(pair(rate=0.001, loss=lambda y, p: keras.ops.sum(keras.ops.abs(y - p)), say="sum"), X, ONE_HOT)


@pytest.mark.parametrize(
    ("loss", "say", "message"),
    [
        (Squares(reduction=None), None, "reduction=None, and so no single number"),
        (OwnCall(), "mean", "has a __call__ of its own"),
        (lambda y, p: keras.ops.abs(y - p), "sum", 'so it is their mean: say loss="mean"'),
    ],
)
def test_losses_that_can_not_be_joined_are_refused(loss: Any, say: str | None, message: str) -> None:
    split, _ = pair(loss=loss, say=say)
    with pytest.raises(ValueError, match=message):
        split.train_on_batch(X, ONE_HOT)


def test_one_number_for_a_batch_beside_weights_is_refused_where_it_is_declared() -> None:
    split, _ = pair(loss=Squares(), say="mean")
    with pytest.raises(ValueError, match=r"gives one number for a micro-batch, so that weights.*say loss=.batch."):
        split.fit(X, ONE_HOT, sample_weight=WEIGHTS, verbose=0)
    assert_same_fit(pair(loss=Squares(), say="batch"), X, ONE_HOT, sample_weight=WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("batch", [10, 16])  # 10 in micro-batches of 3 and 2
def test_one_loss_object_for_two_outputs_and_their_losses(batch, reduction):
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    for given in (loss, [loss, keras.losses.MeanAbsoluteError(reduction=reduction)]):
        assert_same_fit(pair(two_outputs, rate=0.001, loss=given), X, (ONE_HOT, ONE_HOT + 1), batch=batch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras itself says
def test_a_mask_of_an_output_without_a_loss_does_not_count():
    def build() -> keras.Model:
        words = keras.Input((5,), dtype="int32")
        embedded = keras.layers.Embedding(9, 4, mask_zero=True)(words)
        sequence = keras.layers.LSTM(4, return_sequences=True, name="sequence")(embedded)
        kind = keras.layers.Dense(3, name="kind")(keras.layers.LSTM(4)(embedded))
        return keras.Model(words, {"sequence": sequence, "kind": kind})

    models = pair(build, loss={"kind": LOSS(from_logits=True)})
    assert_same_fit(models, WORDS, {"kind": Y})


@pytest.mark.slow
def test_an_optimizer_with_an_apply_gradients_of_its_own():
    models = pair()
    for model in models:
        model.compile(Hasty(0.1), LOSS(from_logits=True))
    assert_same_fit(models, X, Y)


def test_what_can_not_be_split_is_refused():
    split, _ = pair(lambda: model_of(keras.layers.Dense(4), keras.layers.BatchNormalization(renorm=True)))
    with pytest.raises(ValueError, match="renorm=True, which can't be computed in micro-batches"):
        split.fit(X, Y, verbose=0)
    split, _ = pair()
    split.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    with pytest.raises(ValueError, match="accumulates by itself: compile the model with the optimizer alone"):
        split.fit(X, Y, verbose=0)


def test_a_train_step_of_the_users_own_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            return {}

    _, patched = pair()
    patched.train_step = lambda data: {}
    for model in (Own([keras.layers.Dense(1)]), patched):
        with pytest.raises(ValueError, match=r"has a train_step of its own.*Accumulate"):
            accumulate(model, 2)
