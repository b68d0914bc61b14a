"""Losses and metrics are arguments; labels may be of any integer dtype and weights may be left out."""

import shlex

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.losses import accuracy, cross_entropy, example_weights, weighted_sums
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.config import LeNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.sgd import SGD
from accumtrain.tasks.classify import build_cross_entropy
from accumtrain.tasks.config import CrossEntropyConfig

SHAPE = (8, 8, 1)
LOGITS = tf.constant([[2.0, 0.5, -1.0], [0.0, 3.0, 1.0], [1.0, 1.5, 0.0]])
LABELS = [0, 1, 2]


def window(**options):
    return Window(build_model(LeNetConfig(), ModelSpec(SHAPE, 3, seed=1)), SGD(0.1), **options)


def batches(**changes):
    batch = {"inputs": tf.random.stateless_normal([3, *SHAPE], [0, 1]), "targets": tf.constant(LABELS), **changes}
    return iter(tf.data.Dataset.from_tensors(batch).repeat())


def test_against_numpy():
    logits = LOGITS.numpy().astype(np.float64)
    expected = np.log(np.exp(logits).sum(1)) - logits[range(3), LABELS]
    np.testing.assert_allclose(cross_entropy(tf.constant(LABELS), LOGITS), expected, rtol=1e-6)
    np.testing.assert_array_equal(accuracy(tf.constant(LABELS), LOGITS), [1.0, 1.0, 0.0])


@pytest.mark.parametrize("dtype", [tf.uint8, tf.int8, tf.uint16, tf.int32, tf.int64])
def test_labels_of_any_integer_dtype(dtype):
    assert np.array_equal(cross_entropy(tf.constant(LABELS, dtype), LOGITS), cross_entropy(tf.constant(LABELS), LOGITS))


def test_labels_that_are_no_integers():
    with pytest.raises(TypeError, match=r"labels are float32; a loss of classes takes integers"):
        cross_entropy(tf.constant(LABELS, tf.float32), LOGITS)


def test_examples_without_weight_count_alike():
    batch = {"targets": tf.constant(LABELS)}
    weighted = weighted_sums([cross_entropy], LOGITS, {**batch, "weight": tf.ones([3])})
    assert np.array_equal(weighted_sums([cross_entropy], LOGITS, batch), weighted)
    assert example_weights({"targets": tf.zeros([3, 2])}).shape == [3], "labels of any rank"


def test_own_loss_and_metrics():
    """A squared loss: its mean and that of a metric come back, and its gradient is what is applied."""

    def squared(labels, logits):
        return tf.reduce_sum(tf.square(logits - tf.one_hot(labels, 3)), axis=-1)

    def largest(labels, logits):
        return tf.reduce_max(logits, axis=-1)

    own = window(loss=squared, metrics={"largest": largest})
    (weight, *_), batch = own.variables_, next(batches())
    with tf.GradientTape() as tape:
        logits = own.model(batch["inputs"])
        loss = tf.reduce_mean(squared(batch["targets"], logits))
    expected = weight - 0.1 * tape.gradient(loss, weight)
    step = Step(own)
    step.accumulate(batches())
    result = step.commit()
    assert "accuracy" not in result
    assert float(result["loss"]) == pytest.approx(float(loss), rel=1e-6)
    assert float(result["largest"]) == pytest.approx(float(tf.reduce_mean(largest(None, logits))), rel=1e-6)
    np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_a_window_that_is_not_full_says_so():
    step, stream = Step(window(micro_steps=3)), batches()
    step.accumulate(stream, 2)
    with pytest.raises(ValueError, match=r"the window holds 2 of its 3 micro-steps"):
        step.commit()
    step.accumulate(stream)
    assert int(step.commit()["step"]) == 1
    step.accumulate(stream, 2)
    step.drop()
    step.accumulate(stream, 1)
    result = step.commit(partial=True)
    assert (int(result["step"]), float(result["examples"])) == (2, 3.0)


def test_no_window_without_micro_steps_or_variables():
    with pytest.raises(ValueError, match="a window has at least 1"):
        window(micro_steps=0)
    frozen = build_model(LeNetConfig(), ModelSpec(SHAPE, 3))
    frozen.segments = []
    with pytest.raises(ValueError, match="no trainable variable"):
        Window(frozen, SGD(0.1))


def of(**keys):
    return build_cross_entropy(CrossEntropyConfig(**keys))


def test_smoothing_is_that_of_keras():
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2, reduction="none")
    expected = keras_loss(tf.one_hot(LABELS, 3), LOGITS)
    np.testing.assert_allclose(of(label_smoothing=0.2)(tf.constant(LABELS), LOGITS), expected, rtol=1e-6)


def test_class_weights_multiply_the_loss_and_not_the_accuracy():
    labels = [2, 1, 0]  # in another order than the classes
    batch = {"targets": tf.constant(labels)}
    plain = cross_entropy(tf.constant(labels), LOGITS).numpy()
    loss, right = weighted_sums([of(class_weights=[1.0, 0.0, 5.0]), accuracy], LOGITS, batch)
    assert float(loss) == pytest.approx(plain @ [5, 0, 1])
    assert float(right) == 1.0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_two_labels_are_a_mixed_target(dtype):
    share = np.array([0.3, 1.0, 0.0], np.float32)
    batch = {"targets": tf.constant(LABELS), "other_targets": tf.constant([1, 2, 0]), "share": tf.constant(share)}
    target = share[:, None] * tf.one_hot(LABELS, 3) + (1 - share)[:, None] * tf.one_hot([1, 2, 0], 3)
    loss, right = weighted_sums([cross_entropy, accuracy], tf.cast(LOGITS, dtype), batch)
    assert loss.dtype == dtype
    assert float(loss) == pytest.approx(float(tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(target, LOGITS))))
    assert float(right) == pytest.approx(0.3 + 1.0 + 0.0)


def uncounted():
    pytest.fail("nothing to count")


def test_balanced_weights_give_every_class_the_same_sum():
    config = CrossEntropyConfig(class_weights="balanced").for_training([], lambda: [10, 30, 0, 60])
    assert np.multiply(config.factors, [10, 30, 0, 60]) == pytest.approx([100 / 3, 100 / 3, 0, 100 / 3])
    assert CrossEntropyConfig().for_training([], uncounted) == CrossEntropyConfig()


NAMES = ["0", "1", "10", "2"]  # of folders, in the order of texts
COUNTS = [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("weights", "names", "factors"),
    [
        ({"2": 5.0, "10": 0.5}, NAMES, [1.0, 1.0, 0.5, 5.0]),
        ({"2": 5.0}, [], [1.0, 1.0, 5.0, 1.0]),
        ([1.0, 2.0, 3.0, 4.0], [], [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_weights_go_by_the_names_of_classes(weights, names, factors):
    assert CrossEntropyConfig(class_weights=weights).for_training(names, lambda: COUNTS).factors == factors


def test_weights_by_name_need_no_counts():
    loss = CrossEntropyConfig(class_weights={"2": 5.0})
    assert loss.for_training(NAMES, uncounted).factors == [1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("weights", "names", "message"),
    [
        ([1.0, 2.0, 3.0, 4.0], NAMES, r"=\[1.0,2.0,3.0,4.0\]: a list has the order of the classes, here 0, 1, 10"),
        ([1.0, 2.0], [], r"=\[1.0,2.0\]: holds 2 weights, the data has 4 classes; give one for each"),
        ({"owk": 2.0}, ["cat", "dog", "fox", "owl"], r"class_weights.owk=2.0: no such class; did you mean owl?"),
        ({"4": 2.0}, [], r"class_weights.4=2.0: no such class; choose from 0, 1, 2, 3"),
        ({"0": 0.0, "1": 0.0, "2": 0.0, "3": 0.0}, [], r"no class is left to learn"),
    ],
)  # fmt: skip
def test_weights_of_other_classes_are_refused(weights, names, message):
    with pytest.raises(ConfigError, match=message):
        CrossEntropyConfig(class_weights=weights).for_training(names, lambda: COUNTS)


def test_the_remedy_for_a_list_gives_the_classes_its_weights(compose):
    """The remedy is a word of a shell as it stands in the message, with its quotes."""
    with pytest.raises(ConfigError) as refused:
        CrossEntropyConfig(class_weights=[1.0, 2.0, 3.0, 4.0]).for_training(NAMES, lambda: COUNTS)
    (override,) = [each for each in shlex.split(str(refused.value)) if each.startswith("loss.class_weights={")]
    loss = compose(override.rstrip(",")).loss
    assert loss.for_training(NAMES, lambda: COUNTS).factors == [1.0, 2.0, 3.0, 4.0]


def test_evaluations_measure_the_plain_loss():
    loss = build_cross_entropy(CrossEntropyConfig(label_smoothing=0.3, class_weights="balanced").for_evaluation)
    assert np.array_equal(loss(tf.constant(LABELS), LOGITS), cross_entropy(tf.constant(LABELS), LOGITS))


def test_one_number_for_a_batch_is_no_loss():
    def mean(labels, logits):
        return tf.reduce_mean(logits)

    with pytest.raises(ConfigError, match=r"mean: returns values of the shape \(\); .* one value for each example"):
        weighted_sums([mean], LOGITS, {"targets": tf.constant([0, 1, 2])})
