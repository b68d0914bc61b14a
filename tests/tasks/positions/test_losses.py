"""loss=positions: each loss against its definition, and its updates by micro-batches against those of one batch."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain
from accumtrain.devices.config import MirroredConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import OfSums
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.measure.verify.losses import sum_losses
from accumtrain.models.layers import Bias, Conv, Initializer
from accumtrain.optim.config import SgdConfig
from accumtrain.tasks.config import PositionsConfig
from accumtrain.tasks.objective import build_loss
from accumtrain.tasks.positions.losses import position_accuracy
from accumtrain.train.build import build_optimizer
from tests.engine.small import distance
from tests.programs import output_of

CLASSES, EXAMPLES, SIDE = 4, 32, 6
SGD = SgdConfig(lr=0.5, weight_decay=0.0, momentum=0.0, nesterov=False)
LOSSES = {
    "entropy": PositionsConfig(),
    "weighted": PositionsConfig(class_weights=[0.5, 1.0, 2.0, 0.0]),
    "focal": PositionsConfig(focus=2.0),
    "dice": PositionsConfig(entropy=0.0, overlap=1.0),
    "tversky": PositionsConfig(entropy=0.0, overlap=1.0, false_alarms=0.3, misses=0.7),
    "both": PositionsConfig(entropy=0.7, overlap=1.5, class_weights=[1.0, 3.0, 1.0, 1.0], focus=1.0),
    "dice of examples": PositionsConfig(entropy=0.0, overlap=1.0, over="example"),
    "both of examples": PositionsConfig(overlap=0.5, over="example"),
}


class Pixels(tf.Module):
    """A convolution and a bias: logits of each pixel."""

    def __init__(self):
        super().__init__()
        init = Initializer(5, tf.float64)
        self.conv, self.bias = Conv(init, 3, 2, CLASSES), Bias(init, CLASSES)

    def __call__(self, x, mode):
        return self.bias(tf.tanh(self.conv(x)) * 3.0)


def make_batch():
    """A third of the pixels and one example have no class, the last class is in one example, and five are out."""
    random = np.random.default_rng(1)
    images = random.normal(size=[EXAMPLES, SIDE, SIDE, 2])
    masks = random.integers(0, CLASSES - 1, [EXAMPLES, SIDE, SIDE]).astype(np.int32)
    masks[3, :2] = CLASSES - 1
    masks[random.random(masks.shape) < 1 / 3] = -1
    masks[7] = -1
    weight = (masks >= 0).sum((1, 2)).astype(np.float32)
    weight[-5:] = 0  # a ragged end
    return {"inputs": tf.constant(images), "targets": tf.constant(masks), "weight": tf.constant(weight)}


def window_of(config, micro_steps):
    model = Model([Chain("store", [Pixels()])], tf.float64)
    metrics = {"pixel_accuracy": position_accuracy}
    return Window(model, build_optimizer(SGD), loss=build_loss(config), metrics=metrics, micro_steps=micro_steps)


def update(window, micro_batch, strategy=None):
    strategy, step = strategy or tf.distribute.get_strategy(), Step(window)
    data = tf.data.Dataset.from_tensor_slices(make_batch()).batch(micro_batch, drop_remainder=True)
    step.accumulate(iter(strategy.experimental_distribute_dataset(data)), EXAMPLES // micro_batch)
    return {name: value.numpy().item() for name, value in step.commit().items()}


def weights(window):
    return [variable.numpy() for variable in window.variables_]


def define(config, targets, logits):
    """The loss of a batch by the words of its keys, class by class, from the labelled pixels of its examples alone."""

    def overlap_loss(labels, p):
        losses = []
        for number in range(CLASSES):
            there, said = tf.cast(labels == number, p.dtype), p[:, number]
            if not np.any(labels == number):
                continue
            hits = tf.reduce_sum(there * said)
            wrong = config.false_alarms * tf.reduce_sum((1 - there) * said)
            losses.append(1 - hits / (hits + wrong + config.misses * tf.reduce_sum(there * (1 - said))))
        return tf.add_n(losses) / len(losses)

    factors = tf.constant(config.class_weights or [1.0] * CLASSES, tf.float64)
    parts = [(labels[labels >= 0], row[labels >= 0]) for labels, row in zip(targets, logits, strict=True)]
    parts = [(labels, row) for labels, row in parts if len(labels)]
    labels, p = np.concatenate([labels for labels, _ in parts]), tf.nn.softmax(tf.concat([row for _, row in parts], 0))
    of_class = tf.gather(p, labels, batch_dims=1)
    entropy = tf.gather(factors, labels) * (1 - of_class) ** config.focus * -tf.math.log(of_class)
    loss = config.entropy * tf.reduce_mean(entropy)
    if config.over == "batch":
        return loss + (config.overlap * overlap_loss(labels, p) if config.overlap else 0.0)
    sizes = [len(labels) for labels, _ in parts]
    each = [overlap_loss(labels, tf.nn.softmax(row)) for labels, row in parts]
    return loss + config.overlap * tf.add_n([n * one for n, one in zip(sizes, each, strict=True)]) / sum(sizes)


@pytest.mark.parametrize("name", LOSSES)
def test_an_update_by_micro_batches_is_that_of_the_definition(name):
    config, batch = LOSSES[name], make_batch()
    whole = window_of(config, 1)
    start, used = weights(whole), (batch["weight"] > 0).numpy()
    with tf.GradientTape() as tape:
        logits = whole.model(batch["inputs"])[used]
        loss = define(config, batch["targets"].numpy()[used], list(logits))
    expected = [before - 0.5 * each for before, each in zip(start, tape.gradient(loss, whole.variables_), strict=True)]
    moved = distance(expected, start)
    for micro_steps in (1, 2, 4, 8):
        window = window_of(config, micro_steps)
        scalars = update(window, EXAMPLES // micro_steps)
        assert scalars["loss"] == pytest.approx(float(loss), rel=1e-12), micro_steps
        assert distance(weights(window), expected) <= 1e-12 * moved, micro_steps
        assert scalars["weight"] == batch["weight"].numpy().sum()


@pytest.mark.slow
def test_replicas_add_their_sums():
    """In a process of its own: logical devices have to be set before TensorFlow runs."""
    output_of("-c", "from tests.tasks.positions.test_losses import two_replicas; two_replicas()")


def two_replicas():
    strategy = resolve_devices(MirroredConfig(virtual=2)).strategy
    for config in LOSSES.values():
        with strategy.scope():
            split = window_of(config, 2)
            found = update(split, EXAMPLES // 2, strategy)
            values = weights(split)
        whole = window_of(config, 1)
        start, expected = weights(whole), update(whole, EXAMPLES)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)
        assert distance(values, weights(whole)) <= 1e-12 * distance(weights(whole), start)


def test_overlaps_of_a_batch_hold_no_outputs():
    loss = build_loss(LOSSES["both"])
    assert isinstance(loss, OfSums)
    batch = make_batch()
    held = loss.hold(batch, tf.zeros([EXAMPLES, SIDE, SIDE, CLASSES], tf.float64))
    assert held.shape == [loss.count(CLASSES)] == [14]


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_labelled_has_no_loss(name):
    loss, targets = build_loss(LOSSES[name]), tf.fill([2, 3, 3], -1)
    outputs = tf.zeros([2, 3, 3, CLASSES], tf.float64)
    if isinstance(loss, OfSums):
        weight = tf.zeros([2])
        *_, value = loss.of_batches([{"targets": targets, "weight": weight}], [outputs])
        assert value == 0
    else:
        assert loss(targets, outputs).numpy().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"entropy": 0.0}, "loss.entropy=0 and loss.overlap=0: nothing is left to learn"),
        ({"focus": 0.5}, r"loss.focus=0.5: the gradient of a certain position would be infinite; use 0, or 1 or more"),
        ({"overlap": 1.0, "false_alarms": 0.0, "misses": 0.0}, "all overlaps would be 1; give one a weight above 0"),
    ],
)
def test_losses_that_can_not_be_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        PositionsConfig(**keys).check()


@pytest.mark.parametrize("name", LOSSES)
def test_job_verify_has_the_same_loss_by_its_own_formula(name):
    config, batch = LOSSES[name], make_batch()
    outputs = window_of(config, 1).model(batch["inputs"])
    used = {part: tensor.numpy() for part, tensor in batch.items()}
    kept = used["weight"] > 0
    found = sum_losses(config, {part: values[kept] for part, values in used.items()}, outputs.numpy()[kept])
    expected = define(config, used["targets"][kept], list(outputs[kept])) * used["weight"].sum()
    assert found == pytest.approx(float(expected), rel=1e-12)
