"""What decides what is learned: the micro-batches of a sum, but not those of a mean."""

from __future__ import annotations

from accumtrain.config.schema import AccumConfig, Config
from accumtrain.runs.names import differences, has_same_class_count, learned_values


def changed(before: AccumConfig, now: AccumConfig) -> str:
    return differences(*(learned_values(Config(accum=accum)) for accum in (before, now)))


def test_the_number_of_micro_batches_decides_nothing_under_a_mean():
    assert changed(AccumConfig(steps=4), AccumConfig(steps=8)) == ""


def test_it_does_under_a_sum():
    sums = (AccumConfig(steps=steps, reduction="sum") for steps in (4, 8))
    assert changed(*sums) == "accum.steps=4 there and 8 here"
    by_sum = AccumConfig(steps=4, reduction="sum")
    assert changed(AccumConfig(steps=4), by_sum) == "accum.reduction=mean there and sum here"


def test_the_state_of_a_run_goes_on_with_as_many_classes():
    named = {"data.classes": ["cat", "dog"], "data.train.examples": 8}
    assert has_same_class_count(named, {"data.classes": ["cat", "owl"], "data.train.examples": 9})
    assert has_same_class_count(named, {"data.classes": 2})
    assert not has_same_class_count(named, {"data.classes": ["cat", "dog", "owl"]})
    assert not has_same_class_count({"data.classes": 10}, {"data.classes": 3})
