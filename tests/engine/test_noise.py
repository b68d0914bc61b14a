"""The noise scale of a window: exact for its micro-gradients, and right on a problem whose noise is known."""

import json
from itertools import combinations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain
from accumtrain.engine.losses import LossScale, WholeBatch, cross_entropy
from accumtrain.engine.noise import KEPT, NoiseScale
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.fields import NEXT
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.transformers.config import RevDecoderConfig
from accumtrain.optim.config import SgdConfig
from accumtrain.tasks.texts.tokens import token_cross_entropy
from accumtrain.train.build import build_optimizer
from tests.engine.small import CLASSES, examples, revnet38

SHAPE = (8, 8, 1)
STILL = SgdConfig(lr=1e-30, weight_decay=0.0, momentum=0.0)  # the weights stay


class Shift(tf.Module):
    """The function x - weights, whose squared length is half of 2 sum (x - weights)^2."""

    def __init__(self, size):
        super().__init__()
        self.weights = tf.Variable(tf.zeros([size], tf.float64))

    def __call__(self, x, mode):
        return x - self.weights


def half_square(targets, outputs):
    return 0.5 * tf.reduce_sum(outputs**2, axis=-1)


def window_of(model, loss=cross_entropy, **options):
    return Window(model, build_optimizer(STILL), loss=loss, metrics={}, measures_noise=True, **options)


def commit(window, micro_batches):
    """Make an update of micro-batches, each of any size. Return its scalars."""
    step = Step(window)
    for batch in micro_batches:
        step.accumulate(iter(tf.data.Dataset.from_tensors(batch)), 1)
    return {name: value.numpy().item() for name, value in step.commit(partial=True).items()}


def gradients_by_tape(model, loss, batch):
    """Return the gradient of the sum of the losses of a micro-batch, as one vector."""
    with tf.GradientTape() as tape:
        losses = loss(batch["targets"], model(batch["inputs"])) * tf.cast(batch["weight"], model.variables[0].dtype)
        total = tf.reduce_sum(losses)
    gradients = tape.gradient(total, model.trainable_variables)
    return np.concatenate([tf.convert_to_tensor(each).numpy().ravel() for each in gradients])


def by_pairs(vectors, weight):
    """Return |G|^2 and the trace of the covariance from pairs of micro-gradients of equal weight, each unbiased."""
    pairs = list(combinations(vectors, 2))
    square = np.mean([one @ other for one, other in pairs]) / weight**2
    return square, np.mean([np.sum((one - other) ** 2) for one, other in pairs]) / (2 * weight)


def split(data, count):
    return [
        tf.nest.map_structure(lambda values, part=part: tf.split(values, count)[part], data) for part in range(count)
    ]


def text_rows(count):
    tokens = tf.random.stateless_uniform([count, 9], [1, 2], 0, 32, tf.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weight": tf.fill([count], 8.0)}


MODELS = {
    "images": (revnet38("group", units=(1, 1)), ModelSpec(SHAPE, CLASSES, "float64", 3), cross_entropy, 2.0),
    "a tied table": (
        RevDecoderConfig(depth=1, width=8, heads=1),
        ModelSpec((8,), 32, "float64", 3, inputs=("tokens",), vocabulary=32, tells=NEXT),
        token_cross_entropy,
        16.0,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_both_parts_are_those_of_pairs_of_micro_gradients(name):
    config, spec, loss, weight = MODELS[name]
    model = build_model(config, spec)
    data = text_rows(8) if spec.tells else examples(8, SHAPE)
    if not spec.tells:
        data["inputs"] = tf.cast(data["inputs"], tf.float64)
    parts = split(data, 4)
    square, variance = by_pairs([gradients_by_tape(model, loss, part) for part in parts], weight)
    found = commit(window_of(model, loss), parts)
    assert found["gradient_square"] == pytest.approx(square, rel=1e-9)
    assert found["gradient_variance"] == pytest.approx(variance, rel=1e-9)
    assert found["noise_scale"] == pytest.approx(variance / square, rel=1e-9)


def test_the_noise_of_a_known_problem_is_found_from_uneven_micro_batches():
    """Of half the squared distance to x the gradient is weights - x: its noise is the covariance of x."""
    size, updates = 50, 400
    generator = np.random.default_rng(0)
    mean, deviation = np.full(size, 0.2), np.linspace(0.1, 2.0, size)
    window = window_of(Model([Chain("store", [Shift(size)])], tf.float64), half_square)
    step = Step(window)

    def rows():
        for _ in range(updates):
            for count in (1, 2, 5, 8):
                yield mean + deviation * generator.standard_normal((count, size))

    dataset = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([None, size], tf.float64))
    batches = iter(dataset.map(lambda x: {"inputs": x, "targets": x, "weight": tf.ones(tf.shape(x)[:1])}))
    parts = []
    for _ in range(updates):
        step.accumulate(batches, 4)
        found = step.commit(partial=True)
        parts.append([found["gradient_square"].numpy(), found["gradient_variance"].numpy()])
    shares = 1 - KEPT ** np.arange(1, updates + 1)
    means = np.array(parts) * shares[:, np.newaxis]  # before they were divided by these
    single = (means - np.vstack([[0, 0], means[:-1] * KEPT])) / (1 - KEPT)  # of each update
    square, variance = single.mean(axis=0)
    expected = np.sum(mean**2), np.sum(deviation**2)
    assert (square, variance) == pytest.approx(expected, rel=0.05)
    assert float(found["noise_scale"]) == pytest.approx(expected[1] / expected[0], rel=0.25), "of 100 updates or so"


def test_a_loss_scale_changes_nothing():
    config, *_ = MODELS["images"]
    parts = split(examples(8, SHAPE), 4)
    plain, scaled = (window_of(build_model(config, ModelSpec(SHAPE, CLASSES, "float32", 3))) for _ in range(2))
    scaled.loss_scale = LossScale(1024.0, 1000)
    one, other = (commit(window, parts) for window in (plain, scaled))
    assert one["noise_scale"] == pytest.approx(other["noise_scale"], rel=1e-5)


def test_sums_in_float64_change_nothing_but_rounding():
    config, *_ = MODELS["images"]
    parts = split(examples(8, SHAPE), 4)
    models = [build_model(config, ModelSpec(SHAPE, CLASSES, "float32", 3)) for _ in range(2)]
    one, other = (
        commit(window_of(model, sum_dtype=dtype), parts)
        for model, dtype in zip(models, (None, tf.float64), strict=True)
    )
    assert one["noise_scale"] == pytest.approx(other["noise_scale"], rel=1e-5)


def test_a_checkpoint_holds_the_means_alone():
    noise, other = NoiseScale(), NoiseScale()
    noise.restore([0.1, 2.5, 3.0])
    other.restore(json.loads(json.dumps(noise.facts)))
    assert other.facts == noise.facts == [0.1, 2.5, 3.0]


def test_one_micro_batch_and_empty_ones_tell_nothing():
    config, *_ = MODELS["images"]
    window = window_of(build_model(config, ModelSpec(SHAPE, CLASSES, "float32", 3)))
    first, *_ = parts = split(examples(8, SHAPE), 2)
    told = commit(window, parts)
    empty = {**parts[1], "weight": tf.zeros([4])}
    after = commit(window, [first, empty])
    names = ("noise_scale", "gradient_square", "gradient_variance")
    assert [after[name] for name in names] == [told[name] for name in names]


def test_a_loss_of_the_whole_batch_is_refused():
    model = Model([Chain("store", [Shift(3)])], tf.float64)
    with pytest.raises(ValueError, match="no gradient of its own"):
        window_of(model, WholeBatch(half_square))
