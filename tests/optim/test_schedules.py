"""Schedules against closed forms; `step` is the number of updates done, update t = step + 1 is being made."""

import json
import math
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.config.read import from_mapping
from accumtrain.errors import ConfigError
from accumtrain.measure.verify.references import FACTORS, rate_of
from accumtrain.optim.config import SgdConfig
from accumtrain.optim.schedules import (
    SCHEDULES,
    ConstantConfig,
    CosineConfig,
    InverseTimeConfig,
    LinearConfig,
    OneCycleConfig,
    RsqrtConfig,
    ScheduleConfig,
    StepConfig,
    WsdConfig,
    exponential_schedule,
)
from tests.machine import machine
from tests.optim import stored_factors

TOTAL = 100
STORED = json.loads(stored_factors.FILE.read_text())


def factors(config: ScheduleConfig, total: int = TOTAL, steps: int = TOTAL, jit_compile: bool = False) -> np.ndarray:
    schedule = tf.function(config.build(total), autograph=False, jit_compile=jit_compile)
    values = [schedule(tf.constant(step, tf.int64)) for step in range(steps)]
    assert all(value.dtype == tf.float32 and value.shape.rank == 0 for value in values)
    return np.array(values)


T = np.arange(1, TOTAL + 1)
CASES = [
    (ConstantConfig(warmup=0), np.ones(TOTAL)),
    (ConstantConfig(warmup=7), np.minimum(T / 7, 1)),
    (ConstantConfig(warmup=8), np.minimum(T / 8, 1)),
    (CosineConfig(warmup=0, final=0.0), 0.5 + 0.5 * np.cos(np.pi * (T - 1) / 99)),
    (
        CosineConfig(warmup=20, final=0.1),
        np.where(T <= 20, T / 20, 0.1 + 0.45 * (1 + np.cos(np.pi * (T - 20) / 80))),
    ),
    (LinearConfig(), (TOTAL - (T - 1)) / TOTAL),  # as in transformers' Trainer, whose first update is number 0
    (LinearConfig(warmup=20, final=0.1), np.where(T <= 20, T / 20, 1 - 0.9 * (T - 20) / 81)),
    (StepConfig(warmup=0, boundaries=[30, 60], factor=0.1), 0.1 ** ((T > 30) * 1.0 + (T > 60))),
    (StepConfig(warmup=10, boundaries=[], factor=0.1), np.minimum(T / 10, 1)),
    (RsqrtConfig(warmup=0, timescale=16), np.sqrt(16 / np.maximum(T, 16))),
    (RsqrtConfig(warmup=5, timescale=16), np.minimum(T / 5, 1) * np.sqrt(16 / np.maximum(T, 16))),
    (WsdConfig(), 1 - np.sqrt(np.maximum(T - 80, 0) / 20)),
    (WsdConfig(decay=25, shape="linear", final=0.1), 1 - 0.9 * np.maximum(T - 75, 0) / 25),
    (WsdConfig(warmup=60, decay=0.5), np.minimum(T / 60, 1) * (1 - np.sqrt(np.maximum(T - 60, 0) / 40))),
]


@pytest.mark.parametrize(("config", "expected"), CASES)
def test_closed_form(config, expected):
    np.testing.assert_allclose(factors(config), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.xla
@pytest.mark.parametrize("config", [config for config, _ in CASES if config.warmup])
def test_xla_gives_the_same(config):
    np.testing.assert_allclose(factors(config, steps=3, jit_compile=True), factors(config, steps=3), rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "total", "exact"),
    [
        (ConstantConfig(warmup=7), TOTAL, {0: 1 / 7, 6: 1.0, 7: 1.0}),
        (CosineConfig(warmup=0, final=0.25), 10, {0: 1.0, 9: 0.25, 10: 0.25, 11: 0.25, 12: 0.25}),
        (CosineConfig(warmup=0, final=0.25), 2, {0: 1.0, 1: 0.25}),
        (
            StepConfig(warmup=0, boundaries=[3, 4], factor=0.5),
            TOTAL,
            {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.5, 4: 0.25, 5: 0.25},
        ),
        (WsdConfig(decay=3, final=0.25), 10, {0: 1.0, 6: 1.0, 9: 0.25, 10: 0.25}),
        (WsdConfig(), 1, {0: 1.0, 1: 0.0}),
        (WsdConfig(), 2, {0: 1.0, 1: 0.0}),  # the decay is shorter than an update
        (WsdConfig(warmup=5), 5, {4: 1.0, 5: 0.0}),  # the run ends in its warm-up
        (OneCycleConfig(rise=0.3), 1, {0: 1.0}),  # the peak would come before the first update
        (OneCycleConfig(rise=0.3), 2, {0: 1.0, 1: 4e-6}),
        (OneCycleConfig(rise=0.3), 3, {0: 1.0, 2: 4e-6}),
        (OneCycleConfig(rise=0.0), 5, {0: 1.0, 4: 4e-6}),
    ],
)
def test_ends_and_boundaries_are_exact(config, total, exact):
    values = factors(config, total=total, steps=max(exact) + 1)
    assert {step: values[step] for step in exact} == {step: np.float32(value) for step, value in exact.items()}


@pytest.mark.parametrize("total", [1, 5])
def test_cosine_of_a_run_that_ends_in_its_warmup(total):
    values = factors(CosineConfig(warmup=5, final=0.0), total=total, steps=total)
    np.testing.assert_allclose(values, np.arange(1, total + 1) / 5, rtol=1e-6)


def test_long_runs_keep_their_resolution():
    schedule = CosineConfig(warmup=0, final=0.0).build(1_000_000)
    middle = float(schedule(tf.constant(500_000, tf.int64)))
    assert middle == pytest.approx(0.5 + 0.5 * math.cos(math.pi * 500_000 / 999_999), abs=1e-6)


@pytest.mark.parametrize("staircase", [False, True])
def test_inverse_time_is_that_of_keras(staircase):
    decay = keras.optimizers.schedules.InverseTimeDecay(1.0, decay_steps=7, decay_rate=0.6, staircase=staircase)
    values = factors(InverseTimeConfig(timescale=7, decay=0.6, staircase=staircase))
    np.testing.assert_allclose(values, [float(decay(step)) for step in range(TOTAL)], rtol=1e-6)


@pytest.mark.parametrize(("total", "rise"), [(100, 0.3), (100, 0.25), (10, 0.5), (7, 0.37)])
def test_one_cycle_is_two_half_cosines(total, rise):
    """The formula of Smith & Topin's schedule as it is usual: annealed by cosines, the peak at update rise * total."""
    start, final = 0.1, 0.02
    expected = []
    for step in range(total):
        peak = rise * total - 1
        one, other, progress = (
            (start, 1, step / peak) if step <= peak else (1, final, (step - peak) / (total - 1 - peak))
        )
        expected.append(other + (one - other) / 2 * (1 + math.cos(math.pi * progress)))
    values = factors(OneCycleConfig(rise=rise, start=start, final=final), total=total, steps=total)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7)
    assert values[-1] == pytest.approx(final, abs=1e-7)


@pytest.mark.parametrize(("total", "rise"), [(1, 0.3), (2, 0.3), (5, 0.0), (5, 0.3)])
def test_one_cycle_of_a_short_run_has_no_rate_of_zero(total, rise):
    values = factors(OneCycleConfig(rise=rise), total=total, steps=total)
    assert (values > 0).all()
    assert values.max() <= 1.0


def test_one_cycle_whose_peak_is_between_two_updates_rises_in_one():
    first, *_ = factors(OneCycleConfig(rise=0.3, start=0.04), total=5, steps=1)
    assert first == pytest.approx(0.52, rel=1e-6), "the peak is at update 1.5"
    assert FACTORS[OneCycleConfig](OneCycleConfig(rise=0.3, start=0.04), 1, 5) == pytest.approx(0.52), "job=verify's"


@pytest.mark.parametrize(
    ("config", "last", "value", "effect"),
    [
        (ConstantConfig(warmup=8), 8, "warmup=8", "and the rate rises to its end"),
        (CosineConfig(warmup=20), 20, "warmup=20", "and the rate rises to its end"),
        (StepConfig(boundaries=[3, 7]), 7, "boundaries=[3,7]", "so the rate does not fall after 7"),
        (RsqrtConfig(timescale=16, warmup=3), 16, "timescale=16", "so the rate does not fall"),
        (InverseTimeConfig(warmup=6), 6, "warmup=6", "and the rate rises to its end"),
    ],
)
def test_what_a_run_does_not_reach_is_told_with_both_numbers(config, last, value, effect):
    assert config.unreached(last + 1) == []
    key = value.partition("=")[0]
    assert config.unreached(last) == [
        f"schedule.{value}: the run has {last} updates, {effect}; set schedule.{key} below {last}, or train.steps "
        f"above {last}"
    ]


@pytest.mark.parametrize("shape", ["linear", "1-sqrt"])
def test_before_its_decay_a_run_of_wsd_has_the_rates_of_a_longer_one(shape):
    short, long = (factors(WsdConfig(warmup=7, shape=shape), total=total, steps=80) for total in (100, 1000))
    assert short.tolist() == long.tolist()


@pytest.mark.parametrize(("decay", "warmup", "room"), [(100, 0, 99), (0.5, 70, 30), (31.0, 70, 30)])
def test_a_decay_that_does_not_fit_behind_the_warmup_is_told(decay, warmup, room):
    (told,) = WsdConfig(decay=decay, warmup=warmup).unreached(TOTAL)
    assert f"schedule.decay={decay:g}: the run has 100 updates, and {room} come after" in told
    assert f"set schedule.decay={room} or lower" in told
    assert WsdConfig(decay=room, warmup=warmup).unreached(TOTAL) == []


def test_a_decay_between_two_updates_is_refused():
    with pytest.raises(ConfigError, match=r"decay=1\.5: must be a share of the run below 1, .* for example 0\.2 or 2"):
        WsdConfig(decay=1.5).check()
    WsdConfig(decay=2.0).check()


def test_all_that_a_run_does_not_reach_is_told():
    told = StepConfig(warmup=5, boundaries=[1, 2, 7]).unreached(2)
    assert [each.partition(":")[0] for each in told] == ["schedule.warmup=5", "schedule.boundaries=[1,2,7]"]
    assert "does not fall after 2 and 7; set schedule.boundaries below 2, or train.steps above 7" in told[1]
    assert (
        OneCycleConfig().unreached(1) == ConstantConfig().unreached(1) == StepConfig(boundaries=[]).unreached(1) == []
    )


@pytest.mark.parametrize("name", stored_factors.CONFIGS)
def test_factors_are_those_of_earlier_versions_to_the_bit_on_the_machine_that_wrote_them(name):
    for total in stored_factors.TOTALS:
        stored = np.array(STORED[f"{name}, {total} updates"], np.uint32)
        now = stored_factors.factors(stored_factors.CONFIGS[name], total)
        if machine() == STORED["machine"]:
            assert now.view(np.uint32).tolist() == stored.tolist(), total
        else:  # the cosine of another processor
            np.testing.assert_allclose(now, stored.view(np.float32), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.xla)])
@pytest.mark.parametrize("name", stored_factors.CONFIGS)
def test_factors_have_the_precision_of_the_state(name, jit_compile):
    """In float64 those of TensorFlow's kernels and of XLA are the formula, so that both runtimes have one rate."""
    config, sgd = stored_factors.CONFIGS[name], SgdConfig(lr=1.0)
    schedule = tf.function(config.build(60, tf.float64), autograph=False, jit_compile=jit_compile)
    found = [schedule(tf.constant(step, tf.int64)) for step in range(60)]
    assert {value.dtype for value in found} == {tf.float64}
    np.testing.assert_allclose(
        found, [rate_of(sgd, config, step + 1, 60) for step in range(60)], rtol=1e-14, atol=1e-15
    )


def test_one_cycle_has_no_warmup():
    with pytest.raises(ConfigError, match=r"schedule\.warmup=5: schedule=one_cycle has a rise of its own"):
        OneCycleConfig(warmup=5).check()


@pytest.mark.parametrize("total", [2, 50])
def test_an_exponential_rise_meets_both_ends(total):
    schedule = exponential_schedule(1e-6, 10.0, total)
    values = np.array([float(schedule(tf.constant(step, tf.int64))) for step in range(total)])
    np.testing.assert_allclose(values, np.geomspace(1e-6, 10.0, total), rtol=1e-4)


def test_a_program_adds_a_schedule_of_its_own(monkeypatch):
    monkeypatch.setattr(SCHEDULES, "entries", dict(SCHEDULES.entries))

    @dataclass(kw_only=True)
    class LineConfig(accumtrain.ScheduleConfig):
        """A line from 1 down to `final` at the last update.

        `final`: the factor at the end.
        """

        final: float = 0.0

        def factor_at(self, t, total):
            progress = (t - self.first_whole) / max(total - self.first_whole, 1)
            return 1.0 + (self.final - 1.0) * tf.clip_by_value(progress, 0.0, 1.0)

    config = accumtrain.register_schedule("line", LineConfig)
    assert config().kind == "line"
    assert factors(config(final=0.5), total=5, steps=6).tolist() == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert factors(config(warmup=2), total=4, steps=4).tolist() == [0.5, 1.0, 0.5, 0.0]
    given = {"schedule": {"kind": "line", "final": 0.25}}
    assert from_mapping(given | {"train": {"steps": 4}}).schedule == config(final=0.25)
    with pytest.raises(ValueError, match=r"schedule\.kind=line is declared already"):
        accumtrain.register_schedule("line", LineConfig)
    with pytest.raises(TypeError, match="ScheduleConfig has no factor_at"):
        accumtrain.register_schedule("without_formula", accumtrain.ScheduleConfig)
    with pytest.raises(TypeError, match="must be a dataclass that inherits from ScheduleConfig"):
        accumtrain.register_schedule("another_group", accumtrain.LossConfig)
