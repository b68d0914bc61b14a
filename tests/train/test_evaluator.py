"""Means over a split, every example counted once; the answers for each class."""

import time

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.data.config import DigitsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.engine.losses import accuracy, cross_entropy, top5
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.tasks import classify as module
from accumtrain.tasks.classify import WORST, ClassFinder
from accumtrain.train.evaluator import Evaluator
from tests.engine import small

CLASSES, EXAMPLES = 7, 90


def collected(labels, logits, weight, batch):
    answers = ClassFinder(CLASSES, replicas=1)
    update = tf.function(answers.update, autograph=False)
    for first in range(0, len(labels), batch):
        update(*part_of(labels, logits, weight, slice(first, first + batch)))
    return read(answers)


def read(answers):
    confusion, mistakes = answers.read([str(number) for number in range(CLASSES)])
    return confusion.counts, mistakes


def part_of(labels, logits, weight, part):
    return {"targets": tf.constant(labels[part]), "weight": tf.constant(weight[part])}, tf.constant(logits[part])


@pytest.fixture
def examples():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[EXAMPLES, CLASSES]).astype(np.float32)
    return rng.integers(0, CLASSES, EXAMPLES, np.int32), logits, (rng.random(EXAMPLES) < 0.8).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 15, EXAMPLES])
def test_as_by_numpy(batch, examples):
    labels, logits, weight = examples
    counts, mistakes = collected(*examples, batch)
    predicted, used = logits.argmax(-1), weight > 0
    expected = np.zeros([CLASSES, CLASSES], int)
    np.add.at(expected, (labels[used], predicted[used]), 1)
    assert counts == expected.tolist()
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    losses = -np.log(probabilities[range(EXAMPLES), labels])
    wrong = np.flatnonzero(used & (predicted != labels))
    worst = wrong[np.argsort(-losses[wrong])][:WORST]
    assert len(wrong) > WORST
    assert [each.index for each in mistakes] == worst.tolist()
    assert [(each.label, each.predicted) for each in mistakes] == [(labels[n], predicted[n]) for n in worst]
    np.testing.assert_allclose([each.loss for each in mistakes], losses[worst], rtol=1e-5)
    np.testing.assert_allclose([each.probability for each in mistakes], probabilities[worst].max(-1), rtol=1e-5)


def test_replicas_take_turns_in_the_order_of_the_split(examples, monkeypatch):
    """Each keeps the worst of its own part of every batch, with their places in the split."""
    labels, logits, weight = examples
    found, part, replicas = [], 5, 3
    for replica in range(replicas):
        monkeypatch.setattr(module, "current_replica", lambda of=replica: (tf.constant(of), replicas))
        answers = ClassFinder(CLASSES, replicas)
        for first in range(replica * part, EXAMPLES, replicas * part):
            answers.update(*part_of(*examples, slice(first, first + part)))
        found += [each.index for each in read(answers)[1]]
    wrong = (weight > 0) & (logits.argmax(-1) != labels)
    losses = np.log(np.exp(logits).sum(-1)) - logits[range(EXAMPLES), labels]
    of_replica = np.arange(EXAMPLES) // part % replicas
    expected = [np.flatnonzero(wrong & (of_replica == replica)) for replica in range(replicas)]
    assert found == [place for own in expected for place in own[np.argsort(-losses[own])][:WORST]]


def test_without_mistakes(examples):
    labels, _, weight = examples
    counts, mistakes = collected(labels, 9 * np.eye(CLASSES, dtype=np.float32)[labels], weight, 30)
    assert np.trace(counts) == np.sum(counts) == weight.sum()
    assert mistakes == []


def test_a_loss_that_is_not_finite_is_the_worst(examples):
    labels, logits, weight = examples
    weight[40], labels[40] = 1, 3
    logits[40] = np.nan
    _, mistakes = collected(labels, logits, weight, 30)
    assert mistakes[0].index == 40
    assert mistakes[0].loss == np.finfo(np.float32).max


def test_top5(examples):
    labels, logits, _ = examples
    expected = [label in row.argsort()[-5:] for label, row in zip(labels, logits, strict=True)]
    found = top5(tf.constant(labels), tf.constant(logits))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == logits.dtype
    assert 0 < np.mean(expected) < 1


BATCH = 100  # of 360 test images


@pytest.fixture(scope="module")
def data():
    return open_data(DigitsConfig(val_fraction=None), seed=0)


@pytest.fixture(scope="module")
def model(data):
    return build_model(small.lenet(), ModelSpec(data.shape, small.CLASSES, seed=1))


@pytest.fixture
def evaluator(model, data):
    means = {"loss": cross_entropy, "accuracy": accuracy}
    return Evaluator(model, None, means, data, "test", BATCH, TensorFlowRuntime())


@pytest.fixture(scope="module")
def expected(model, data):
    """Loss and accuracy over the images of batches of one, which are never filled up."""
    examples = [*make_eval_batches(data, batch=1)]
    assert len(examples) == data.test.size == 360
    labels = np.array([int(example["targets"][0]) for example in examples])
    images = tf.concat([example["inputs"] for example in examples], 0)
    logits = model(images, Mode(training=False)).numpy().astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -log_probabilities[range(360), labels].mean(), (logits.argmax(1) == labels).mean()


def evaluate(evaluator, stop=lambda: False):
    """The result, all reports, and the seconds that it took."""
    reports, started = [], time.perf_counter()
    result = evaluator(stop, lambda done, batches: reports.append((done, batches)))
    return result, reports, time.perf_counter() - started


def test_every_example_counts_once_in_every_evaluation(evaluator, expected):
    for _ in range(2):
        found, reports, seconds = evaluate(evaluator)
        assert (found["loss"], found["accuracy"]) == pytest.approx(expected, rel=1e-5)
        assert found["examples"] == 360
        assert 0 < found["seconds"] < seconds
        assert reports[-1] == (4, 4)
        assert [done for done, _ in reports] == sorted({done for done, _ in reports})


def test_another_split_is_evaluated(model, data):
    means = {"loss": cross_entropy}
    found, _, _ = evaluate(Evaluator(model, None, means, data, "train", BATCH, TensorFlowRuntime()))
    assert found["examples"] == data.train.size == 1437


class Seen:
    """In the place of metrics of a whole split: the ranks of what they are given."""

    names, variables = ("batches",), ()

    def __init__(self):
        self.ranks = []

    def reset(self):
        pass

    def update(self, batch, outputs):
        self.ranks.append((batch["targets"].shape.rank, outputs.shape.rank))

    def take(self):
        return {"batches": 4.0}


def test_metrics_of_a_whole_split_are_given_labels_and_logits(model, data):
    seen, runtime = Seen(), TensorFlowRuntime()
    found, _, _ = evaluate(Evaluator(model, None, {"loss": cross_entropy}, data, "test", BATCH, runtime, [seen]))
    assert set(seen.ranks) == {(1, 2)}
    assert found["batches"] == 4.0


def test_an_abandoned_evaluation_leaves_nothing_to_the_next(evaluator, expected):
    stops = iter([False, True])
    result, _, _ = evaluate(evaluator, lambda: next(stops))
    assert result is None
    found, _, _ = evaluate(evaluator)
    assert (found["loss"], found["accuracy"]) == pytest.approx(expected, rel=1e-5)
