"""An evaluation is the mean over every example of a split, once each, against NumPy."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.data.config import DigitsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import eval_batches
from accumtrain.engine.losses import accuracy, cross_entropy
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.train.evaluator import Evaluator
from tests.engine.small import CLASSES, lenet

BATCH = 100  # of 360 test images


@pytest.fixture(scope="module")
def data():
    return open_data(DigitsConfig(), seed=0)


@pytest.fixture(scope="module")
def model(data):
    return build_model(lenet(), ModelSpec(data.image_shape, CLASSES, seed=1))


@pytest.fixture
def evaluator(model, data):
    means = {"loss": cross_entropy, "accuracy": accuracy}
    return Evaluator(model, None, means, data, "test", BATCH, tf.distribute.get_strategy())


@pytest.fixture(scope="module")
def expected(model, data):
    """Loss and accuracy over the images of batches of one, which are never filled up."""
    examples = [*eval_batches(data, batch=1)]
    assert len(examples) == data.test.size == 360
    labels = np.array([int(example["label"][0]) for example in examples])
    images = tf.concat([example["image"] for example in examples], 0)
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
    found, _, _ = evaluate(Evaluator(model, None, means, data, "train", BATCH, tf.distribute.get_strategy()))
    assert found["examples"] == data.train.size == 1437


class Seen:
    """In the place of metrics of a whole split: the ranks of what they are given."""

    def __init__(self):
        self.ranks = []

    def update(self, labels, logits):
        self.ranks.append((labels.shape.rank, logits.shape.rank))

    def take(self):
        return {"batches": 4.0}


def test_metrics_of_a_whole_split_are_given_labels_and_logits(model, data):
    seen, strategy = Seen(), tf.distribute.get_strategy()
    found, _, _ = evaluate(Evaluator(model, None, {"loss": cross_entropy}, data, "test", BATCH, strategy, seen))
    assert set(seen.ranks) == {(1, 2)}
    assert found["batches"] == 4.0


def test_an_abandoned_evaluation_leaves_nothing_to_the_next(evaluator, expected):
    stops = iter([False, True])
    result, _, _ = evaluate(evaluator, lambda: next(stops))
    assert result is None
    found, _, _ = evaluate(evaluator)
    assert (found["loss"], found["accuracy"]) == pytest.approx(expected, rel=1e-5)
