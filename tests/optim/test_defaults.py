"""Defaults of optimizers and schedules for programs that give no more than they must, by the rules written apart."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.measure.verify.references import FACTORS
from accumtrain.optim import schedules
from accumtrain.optim.adafactor import Adafactor
from accumtrain.optim.adam import Adam, AdamW
from accumtrain.optim.config import AdafactorConfig, AdamConfig, AdamWConfig, SgdConfig
from accumtrain.optim.keras_optimizer import KerasOptimizer
from accumtrain.optim.optimizer import Parameter
from accumtrain.optim.schedules import InverseTimeConfig, OneCycleConfig, WsdConfig
from accumtrain.optim.sgd import SGD
from tests.optim.references import by_rule

UPDATES, TOTAL = 4, 12
OPTIMIZERS = {
    "sgd": (SGD, SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.0, nesterov=False)),
    "sgd of Keras": (lambda: KerasOptimizer(0.1, name="SGD"), SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.0)),
    "momentum alone": (lambda: SGD(momentum=0.9), SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.9, nesterov=False)),
    "adam": (Adam, AdamConfig(lr=1e-3, weight_decay=0.0, beta1=0.9, beta2=0.999, epsilon=1e-8)),
    "adamw": (AdamW, AdamWConfig(lr=1e-3, weight_decay=0.0, beta1=0.9, beta2=0.999, epsilon=1e-8)),
    "adafactor": (Adafactor, AdafactorConfig(lr=None, weight_decay=0.0, momentum=0.0)),
}
SCHEDULES = {
    "constant": (schedules.constant_schedule(), schedules.ConstantConfig(warmup=0)),
    "cosine": (schedules.cosine_schedule(TOTAL), schedules.CosineConfig(warmup=0, final=0.0)),
    "step": (schedules.step_schedule([3, 7]), schedules.StepConfig(warmup=0, boundaries=[3, 7], factor=0.1)),
    "rsqrt": (schedules.rsqrt_schedule(5), schedules.RsqrtConfig(warmup=0, timescale=5)),
    "rsqrt of long runs": (schedules.rsqrt_schedule(), schedules.RsqrtConfig(warmup=0, timescale=10000)),
    "inverse_time": (InverseTimeConfig(timescale=5).build(TOTAL), InverseTimeConfig(warmup=0, decay=1.0, timescale=5)),
    "inverse_time of long runs": (InverseTimeConfig().build(TOTAL), InverseTimeConfig(timescale=10000)),
    "one_cycle": (OneCycleConfig().build(TOTAL), OneCycleConfig(rise=0.3, start=0.04, final=4e-6)),
    "wsd": (WsdConfig().build(TOTAL), WsdConfig(warmup=0, decay=0.2, shape="1-sqrt", final=0.0)),
}


@pytest.mark.parametrize("size", [1.0, 1e-15], ids=["usual", "as small as the epsilons matter"])
@pytest.mark.parametrize(("make", "config"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_an_optimizer_without_arguments_is_that_of_its_paper(make, config, size):
    draw = np.random.default_rng(0)
    start, *gradients = size * draw.normal(size=(1 + UPDATES, 3, 4))
    optimizer, weight = make(), tf.Variable(start)
    optimizer.build([weight], [True])
    steps = [tf.constant(step, tf.int64) for step in range(UPDATES)]
    rates = [optimizer.learning_rate(step) for step in steps]
    for step, rate, gradient in zip(steps, rates, gradients, strict=True):
        optimizer.apply([tf.constant(gradient)], rate, step)
    np.testing.assert_allclose(weight, by_rule(config, start, gradients, [float(rate) for rate in rates]), rtol=1e-12)
    assert float(rates[0]) == np.float32(config.lr or 0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(np.float32(-0.1)), "learning_rate=-0.1.*: must be above 0"),
        (lambda: SGD(None), "learning_rate=None: SGD has no rate of its own"),
        (lambda: AdamW("0.1"), "learning_rate='0.1': must be a number"),
        (lambda: KerasOptimizer(None, name="Lion"), "KerasOptimizer has no rate of its own"),
        (lambda: Adafactor(True), "learning_rate=True: must be a number"),
        (lambda: SGD(tf.constant(0.1)), "learning_rate=<tf.Tensor.*: must be a number"),
        (lambda: SGD(weight_decay=np.float64("nan")), "weight_decay=nan: must be at least 0"),
        (lambda: SGD(weight_decay=None), "weight_decay=None: must be a number"),
        (lambda: SGD(momentum=1.5), "momentum=1.5: must be at least 0 and below 1"),
        (lambda: SGD(momentum=0.9, nesterov=1), "nesterov=1: must be true or false"),
        (lambda: SGD(nesterov=True), "nesterov=True and momentum=0"),
        (lambda: Adam(beta1=1.5), "beta1=1.5: must be at least 0 and below 0.9999999702"),
        (lambda: Adam(beta2=0.99999999), "beta2=0.99999999: must be"),
        (lambda: Adam(beta2=np.float32(1 - 2**-25)), "beta2=1.0: must be"),
        (lambda: AdamW(epsilon=-1.0), "epsilon=-1.0: must be above 0"),
        (lambda: Adafactor(min_dim_size_to_factor=2.5), "min_dim_size_to_factor=2.5: must be a whole number"),
    ],
)
def test_an_argument_that_is_impossible_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("number", [np.float32, np.float64, float, tf.float16.as_numpy_dtype])
def test_numbers_of_numpy_are_numbers(number):
    for optimizer in (SGD(number(0.5), momentum=number(0.5)), Adam(number(0.5), beta2=number(0.5)), Adafactor()):
        optimizer.build([tf.Variable([[1.0]])], [True])
    assert SGD(np.int64(1), nesterov=np.bool_(True), momentum=0.5).learning_rate(tf.constant(0)) == 1.0
    assert Adam(beta2=1 - 2.0**-24)


@pytest.mark.parametrize(("schedule", "config"), SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_schedule_is_that_of_its_definition(schedule, config):
    updates = [*range(1, TOTAL + 1), 9999, 10000, 10001, 20000, 20001]
    values = [float(schedule(tf.constant(t - 1, tf.int64))) for t in updates]
    np.testing.assert_allclose(values, [FACTORS[type(config)](config, t, TOTAL) for t in updates], rtol=1e-6, atol=1e-7)
    assert values[TOTAL - 1] == pytest.approx(FACTORS[type(config)](config, TOTAL, TOTAL), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("factor", "expected"), [({}, 0.5), ({"rate_factor": 0.25}, 0.125)])
def test_a_parameter_has_the_whole_rate_or_its_share(factor, expected):
    rate = Parameter(tf.Variable([1.0], dtype=tf.float64), decayed=False, **factor).rate(tf.constant(0.5))
    assert (rate.dtype, float(rate)) == (tf.float64, expected)
