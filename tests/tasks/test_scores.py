"""The scores of labels and numbers against those of scikit-learn (scores_by_scikit_learn.py)."""

import json

import numpy as np
import pytest

from accumtrain.tasks import scores
from accumtrain.tasks.multilabel import report_labels
from accumtrain.tasks.regress import report_numbers
from tests.tasks.scores_by_scikit_learn import FILE, labels, numbers

STORED = json.loads(FILE.read_text())
LABELS, NUMBERS = labels(), numbers()


def near(value):
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def mean(stored, key):
    """The mean over the columns that are measured."""
    values = [each[key] for each in stored if each is not None]
    return near(np.mean(values))


def test_the_tables_are_those_that_are_stored():
    assert STORED["labels"].keys() == LABELS.keys()
    assert STORED["numbers"].keys() == NUMBERS.keys()


@pytest.mark.parametrize("name", LABELS)
def test_labels(name):
    truth, logits = LABELS[name]
    stored = STORED["labels"][name]
    for place, expected in enumerate(stored):
        column = truth[:, place], logits[:, place]
        if expected is None:
            assert np.isnan(scores.average_precision(*column))
            assert np.isnan(scores.f1(column[0], column[1] >= 0))
            assert scores.best_threshold(*column) == scores.HALF
            continue
        assert scores.average_precision(*column) == near(expected["average_precision"])
        assert scores.f1(column[0], column[1] >= 0) == near(expected["f1"])
        threshold = scores.best_threshold(*column)
        assert threshold == expected["threshold"]
        assert scores.f1(column[0], column[1] >= np.float32(threshold)) == near(expected["highest_f1"])
    assert scores.mean_average_precision(truth, logits) == mean(stored, "average_precision")
    assert scores.macro_f1(truth, logits) == mean(stored, "f1")


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    true, said = NUMBERS[name]
    stored = STORED["numbers"][name]
    for measure, key in (
        (scores.absolute_error, "mae"),
        (scores.root_squared_error, "rmse"),
        (scores.determination, "r2"),
    ):
        found = scores.errors_of(measure, true, said)
        assert found.tolist() == near([column[key] for column in stored])
    assert scores.mean_absolute_error(true, said) == mean(stored, "mae")
    assert scores.root_mean_squared_error(true, said) == mean(stored, "rmse")
    assert scores.r2(true, said) == mean(stored, "r2")


@pytest.mark.parametrize("name", LABELS)
def test_an_evaluation_tells_of_each_label(name):
    """The table of job=evaluate, at the thresholds with the highest F1."""
    truth, logits = LABELS[name]
    stored = STORED["labels"][name]
    names = [f"label {place}" for place in range(len(stored))]
    thresholds = [scores.best_threshold(truth[:, place], logits[:, place]) for place in range(len(stored))]
    described = report_labels(names, truth, logits, thresholds).describe()
    found = {each["name"]: each for each in described["labels"]}
    for own, expected, column in zip(names, stored, truth.T, strict=True):
        assert found[own]["examples"] == np.isin(column, [0, 1]).sum()
        assert found[own]["with_it"] == np.sum(column == 1)
        if expected is None:
            assert found[own]["average_precision"] is found[own]["recall"] is found[own]["f1"] is None
        else:
            assert found[own]["average_precision"] == near(expected["average_precision"])
            assert found[own]["f1"] == near(expected["highest_f1"])
            precision, recall = found[own]["precision"], found[own]["recall"]
            assert 2 * precision * recall / (precision + recall) == near(expected["highest_f1"])
    assert described["f1_at_thresholds"] == mean(stored, "highest_f1")
    precisions = [each["average_precision"] for each in described["labels"]]
    known = [value for value in precisions if value is not None]
    assert precisions == sorted(known) + [None] * (len(precisions) - len(known)), "lowest first, and those without last"


@pytest.mark.parametrize("name", NUMBERS)
def test_an_evaluation_tells_of_each_number(name):
    true, said = NUMBERS[name]
    names = [f"number {place}" for place in range(true.shape[1])]
    for found, expected, column in zip(
        report_numbers(names, true, said).describe()["numbers"], STORED["numbers"][name], true.T, strict=True
    ):
        assert found["examples"] == np.isfinite(column).sum()
        assert [found["mae"], found["rmse"], found["r2"]] == near([expected[key] for key in ("mae", "rmse", "r2")])


# ---- without what they measure ----


def test_without_a_positive_example_there_is_no_score():
    truth, logits = np.array([[0.0, np.nan], [0.0, np.nan]]), np.zeros([2, 2], np.float32)
    assert np.isnan(scores.mean_average_precision(truth, logits))
    assert np.isnan(scores.macro_f1(truth, logits))
    described = report_labels(["a", "b"], truth, logits, [0.5, 0.5]).describe()
    assert described["f1_at_thresholds"] is None
    assert [each["examples"] for each in described["labels"]] == [2, 0]


def test_equal_numbers_have_no_r2_though_their_mean_is_rounded():
    true = np.full([20, 1], 0.1 + 0.2)
    assert (true - true.mean()).any(), "the mean is another number"
    assert np.isnan(scores.r2(true, np.zeros([20, 1])))


def test_numbers_without_examples_or_spread():
    true, said = np.array([[np.nan, 2.0], [np.nan, 2.0]]), np.array([[1.0, 1.0], [1.0, 4.0]])
    assert scores.mean_absolute_error(true, said) == 1.5, "of the other number"
    assert np.isnan(scores.r2(true, said)), "there is no spread to explain"
    unknown, same = report_numbers(["a", "b"], true, said).describe()["numbers"]
    assert unknown == {"name": "a", "examples": 0, "mae": None, "rmse": None, "r2": None}
    assert same == {"name": "b", "examples": 2, "mae": 1.5, "rmse": pytest.approx(2.5**0.5), "r2": None}
    assert np.isnan(scores.mean_absolute_error(true[:, :1], said[:, :1])), "and without a word of NumPy"
    assert np.isnan(scores.root_mean_squared_error(true[:, :1], said[:, :1]))
