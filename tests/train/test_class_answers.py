"""The confusion matrix and the worst mistakes, against NumPy: every example of weight 1 once, over any batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.losses import top5
from accumtrain.train import evaluator
from accumtrain.train.evaluator import WORST, ClassAnswers

CLASSES, EXAMPLES = 7, 90


def collected(labels, logits, weight, batch):
    answers = ClassAnswers(CLASSES, replicas=1)
    update = tf.function(answers.update, autograph=False)
    for first in range(0, len(labels), batch):
        part = slice(first, first + batch)
        update({"label": tf.constant(labels[part]), "weight": tf.constant(weight[part])}, tf.constant(logits[part]))
    return answers.read()


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
    assert [each.position for each in mistakes] == worst.tolist()
    assert [(each.label, each.predicted) for each in mistakes] == [(labels[n], predicted[n]) for n in worst]
    np.testing.assert_allclose([each.loss for each in mistakes], losses[worst], rtol=1e-5)
    np.testing.assert_allclose([each.probability for each in mistakes], probabilities[worst].max(-1), rtol=1e-5)


def test_replicas_take_turns_in_the_order_of_the_split(examples, monkeypatch):
    """Each keeps the worst of its own part of every batch, with their places in the split."""
    labels, logits, weight = examples
    found, part, replicas = [], 5, 3
    for replica in range(replicas):
        monkeypatch.setattr(evaluator, "_replica", lambda of=replica: tf.constant(of))
        answers = ClassAnswers(CLASSES, replicas)
        for first in range(replica * part, EXAMPLES, replicas * part):
            rows = slice(first, first + part)
            batch = {"label": tf.constant(labels[rows]), "weight": tf.constant(weight[rows])}
            answers.update(batch, tf.constant(logits[rows]))
        found += [each.position for each in answers.read()[1]]
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
    assert mistakes[0].position == 40
    assert mistakes[0].loss == np.finfo(np.float32).max


def test_top5(examples):
    labels, logits, _ = examples
    expected = [label in row.argsort()[-5:] for label, row in zip(labels, logits, strict=True)]
    found = top5(tf.constant(labels), tf.constant(logits))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == logits.dtype
    assert 0 < np.mean(expected) < 1
