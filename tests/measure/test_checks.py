"""The checks of job=verify alone: NaN does not pass, wherever it stands among the compared values."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.measure.verify import float64
from accumtrain.measure.verify import window as window_checks
from accumtrain.measure.verify.float64 import InFloat64, check_precision
from accumtrain.measure.verify.result import max_or_nan, ratio
from accumtrain.measure.verify.updates import check_commit, check_rates
from accumtrain.optim.config import SgdConfig
from accumtrain.optim.schedules import StepConfig

NAN = float("nan")
ONES, SECOND_NAN = [np.ones(2), np.ones(2)], [np.ones(2), np.array([1.0, NAN])]


def test_the_worst_is_nan_wherever_it_stands():
    for values in ([0.0, NAN, 2.0], [NAN, np.inf], [np.inf, NAN], [np.float32(1.0), np.float64(NAN)]):
        assert np.isnan(max_or_nan(values))
    assert max_or_nan([1.0, 3.0, 2.0]) == 3.0
    assert max_or_nan({"a": 1.0, "b": NAN, "c": 2.0}.items(), lambda item: item[1])[0] == "b"


def test_nan_in_a_later_statistic_does_not_pass():
    def norm(mean, variance):
        return SimpleNamespace(moving_mean=tf.constant(mean, tf.float64), moving_variance=tf.constant(variance))

    norms = [norm([1.0, 0.0], [1.0, 0.0]), norm([1.0, NAN], [NAN, 1.0]), norm([2.0, 2.0], [1.0, 1.0])]
    exact = [(np.array([1.0, 0.0]), np.array([1.0, 0.0])), *[(np.array([1.0, 2.0]), np.ones(2))] * 2]
    for count, passed in ((1, True), (2, False), (3, False)):  # a channel of zeros is as it should be
        window = SimpleNamespace(model=SimpleNamespace(norms=norms[:count]))
        results = window_checks._moving_statistics(window, exact[:count])
        assert [result.passed for result in results] == [passed, passed]


def test_nan_in_a_later_weight_does_not_pass():
    def commit(after, gradients=ONES, norm=2.0, **keys):
        config = SgdConfig(lr=1.0, weight_decay=0.0, momentum=0.0, **keys)
        scalars = {"grad_norm": norm, "learning_rate": 1.0}
        return check_commit(config, ONES, after, gradients, scalars, [False] * 2, [1.0] * 2)

    zeros = [np.zeros(2), np.zeros(2)]
    assert [result.passed for result in commit(zeros)] == [True, True]
    assert [result.passed for result in commit([zeros[0], np.array([0.0, NAN])])] == [True, False]
    unmoved, _ = results = commit(ONES, zeros, norm=0.0, clip_norm=1.0)
    assert unmoved.note == "the gradient is 0"
    assert all(result.passed for result in results)


def test_nan_in_a_later_gradient_or_statistic_does_not_pass():
    def precision(found, exact):
        return [result.passed for result in check_precision(found, exact, ["a", "b"], "float32", False)]

    assert precision(InFloat64(ONES, ONES), InFloat64(ONES, ONES)) == [True, True]
    assert precision(InFloat64(SECOND_NAN, SECOND_NAN), InFloat64(ONES, ONES)) == [False, False]
    assert precision(InFloat64(ONES, ONES), InFloat64(SECOND_NAN, ONES)) == [False, True]
    zeros = [np.zeros(2), np.zeros(2)]
    assert precision(InFloat64(zeros, ONES), InFloat64(zeros, ONES)) == [True, True]
    assert precision(InFloat64(ONES, ONES), InFloat64(zeros, ONES)) == [False, True]


@pytest.mark.parametrize("place", range(3))
def test_nan_in_a_later_rate_or_derivative_does_not_pass(place):
    rates = iter([0.1] * place + [NAN] + [0.1] * 3)
    step = SimpleNamespace(commit=lambda partial: {"learning_rate": next(rates)})
    stub = SimpleNamespace(step=tf.Variable(0, dtype=tf.int64), variables_=[])
    schedule = StepConfig(boundaries=[1, 2, 3], factor=1.0)
    (result,) = check_rates(stub, step, SgdConfig(lr=0.1), schedule, 4)
    assert result.passed is False
    derivatives = iter([0.0] * place + [NAN] + [0.0] * 9)
    values = SimpleNamespace(derivative=lambda *_: next(derivatives))
    assert float64._along_directions(stub, [], values).passed is False


def test_a_ratio_to_nothing():
    assert [ratio(0.0, 0.0), ratio(1.0, 0.0), ratio(3.0, 2.0)] == [0.0, float("inf"), 1.5]
    assert np.isnan(ratio(NAN, 0.0))
