"""Measures of confusions against scikit-learn's of the same positions, and their odd cases."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.report.classes import Confusion
from accumtrain.report.positions import PositionReport
from accumtrain.tasks.positions.confusions import ConfusionCounter
from accumtrain.tasks.positions.scores import mean_dice, mean_iou

METRICS = {"mean_iou": mean_iou, "mean_dice": mean_dice}
CASES = {  # true classes, predicted ones; -1 has no class
    "all": ([0, 1, 2, 0, 1, 2, 2, 0], [0, 2, 2, 0, 1, 1, 2, 1]),
    "one absent on both sides": ([0, 1, 0, 1], [0, 0, 1, 1]),
    "one only predicted": ([0, 1, 0, 1], [0, 2, 0, 1]),
    "one only true": ([0, 2, 0, 1], [0, 1, 0, 1]),
    "some without a class": ([0, -1, 2, 1, -1], [0, 1, 2, 2, 0]),
    "no positives": ([0, 0, 0], [0, 0, 0]),
    "all wrong": ([0, 1, 2], [1, 2, 0]),
}


def count(true, predicted, weight=None):
    counter = ConfusionCounter(METRICS, 3)
    batch = {"targets": tf.constant([true], tf.int32)} | ({} if weight is None else {"weight": tf.constant(weight)})
    counter.update(batch, tf.one_hot([predicted], 3))
    return counter


@pytest.mark.parametrize("name", CASES)
def test_measures_are_those_of_the_definition(name):
    """By sets of positions, one class after the other."""
    true, predicted = (np.array(each) for each in CASES[name])
    known = true >= 0
    ious, dices = [], []
    for number in range(3):
        a, b = set(np.flatnonzero(known & (true == number))), set(np.flatnonzero(known & (predicted == number)))
        if a | b:
            ious.append(len(a & b) / len(a | b))
            dices.append(2 * len(a & b) / (len(a) + len(b)))
    found = count(*CASES[name]).take()
    assert found == {"mean_iou": pytest.approx(np.mean(ious), abs=1e-15), "mean_dice": pytest.approx(np.mean(dices))}


@pytest.mark.parametrize("name", CASES)
def test_measures_are_those_of_scikit_learn(name):
    metrics = pytest.importorskip("sklearn.metrics")
    true, predicted = (np.array(each) for each in CASES[name])
    known = true >= 0
    labels = np.unique([true[known], predicted[known]])
    found = count(*CASES[name]).take()
    given = {"labels": labels, "average": "macro", "zero_division": 0}
    assert found["mean_iou"] == pytest.approx(metrics.jaccard_score(true[known], predicted[known], **given), abs=1e-12)
    assert found["mean_dice"] == pytest.approx(metrics.f1_score(true[known], predicted[known], **given), abs=1e-12)


def test_nothing_labelled_is_no_number():
    assert np.isnan(list(count([-1, -1], [0, 1]).take().values())).all()


def test_examples_without_weight_are_left_out():
    assert count([0, 1], [0, 0], [0.0]).take()["mean_iou"] != 0
    assert count([0, 1], [0, 0], [0.0]).found.sum() == 0


def test_the_report_has_the_lowest_iou_first_and_classes_that_nobody_has_last():
    report = PositionReport(Confusion(["a", "b", "c"], [[4, 2, 0], [0, 2, 0], [0, 0, 0]]), "pixels")
    first, second, last = report.classes
    assert (first.name, first.iou, first.positions) == ("b", 0.5, 2)
    assert (second.name, second.iou, second.recall, second.precision) == ("a", 4 / 6, 4 / 6, 1.0)
    assert (last.name, last.iou, last.dice, last.precision, last.recall) == ("c", None, None, None, None)
    assert report.describe()["confusions"] == [[4, 2, 0], [0, 2, 0], [0, 0, 0]]
