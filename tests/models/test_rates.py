"""optim.rates: a factor on the rate, for the variables that a pattern matches."""

import json

import pytest
import tensorflow as tf

from accumtrain.dispatch import run
from accumtrain.errors import ConfigError
from accumtrain.models.build import find_rate_factors
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from tests.engine.small import examples, train

FIRST = "segments/0/*"
OPTIMIZERS = [
    ("optim=adam", "optim.weight_decay=0.1"),
    ("optim=adamw", "optim.weight_decay=0.1"),
    ("optim=sgd", "optim.weight_decay=0.1"),
    ("optim=adafactor", "optim.momentum=0.9"),
    pytest.param(("optim=adafactor", "optim.lr=null"), marks=pytest.mark.slow),
    pytest.param(("optim=keras", "optim.name=Nadam", "optim.weight_decay=0.1"), marks=pytest.mark.slow),
    pytest.param(("optim=keras", "optim.name=Muon", "optim.weight_decay=0.1"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: "-".join(each[:2]))
def test_the_factor_multiplies_the_rate_of_what_it_matches(compose, optimizer):
    """The reference is a run at half the rate. A half is exact in binary, so all bits are equal."""

    def after_an_update(*overrides, factor=1.0):
        config = compose("model=lenet5", *optimizer, *overrides)
        window = build_window(config, open_objective(config), 4, tf.distribute.get_strategy())
        window.schedule = lambda step: factor
        train(window, [examples(8, (8, 8, 1))], micro_steps=2)
        return {path: variable.numpy() for path, variable in window.model.named.items()}

    whole, half = after_an_update(), after_an_update(factor=0.5)
    mixed = after_an_update(f"optim.rates={{{FIRST}:0.5}}")
    for path, value in mixed.items():
        expected, other = (half, whole) if path.startswith("segments/0/") else (whole, half)
        assert (value == expected[path]).all(), path
        assert (value != other[path]).any(), path


def test_the_last_pattern_decides():
    assert find_rate_factors({"*": 0.1, "*/bias": 2}, ["a/kernel", "a/bias"]) == [0.1, 2.0]
    assert find_rate_factors({"b/*": 3}, ["a/kernel", "b/bias"]) == [1.0, 3.0]


def test_layers_in_front_learn_slower():
    paths = [
        "segments/0/a",
        "segments/1/units/0/f/a",
        "segments/1/units/10/f/a",
        "segments/1/units/2/g/a",
        "segments/2/a",
    ]
    assert find_rate_factors({"*/f/*": 10}, paths, 0.5) == [0.0625, 1.25, 5.0, 0.25, 1.0]
    assert find_rate_factors({}, paths) == [1.0] * 5


def test_a_model_of_one_layer_has_no_decay_of_layers():
    with pytest.raises(ConfigError, match=r"optim.layer_decay=0.5: the trained variables are of one layer"):
        find_rate_factors({}, ["segments/0/layers/0/kernel", "segments/0/layers/1/kernel"], 0.5)


def test_a_pattern_for_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"optim.rates=c/\*: no trained variable has such a path; the nearest are a/"):
        find_rate_factors({"c/*": 0.1}, ["a/kernel"])


@pytest.mark.parametrize("factor", ["0", "-1", "true", "fast", "null", "1e-60"])
def test_a_factor_that_is_no_number_above_0_is_refused(compose, factor):
    with pytest.raises(ConfigError, match=r"optim\.rates\.segments/0/\*="):
        compose(f"optim.rates={{{FIRST}:{factor}}}")


def test_a_run_goes_on_with_its_rates_only(compose, tmp_path):
    train = ("model=lenet5", "batch_size=16", "accum.steps=2", f"run.dir={tmp_path}", "run.name=one", "train.steps=2")
    run(compose(*train, f"optim.rates={{{FIRST}:0.1}}"))
    assert json.loads((tmp_path / "one/summary.json").read_text())["step"] == 2
    with pytest.raises(ConfigError, match=r"optim\.rates\.segments/0/\*=0.1 there and 0.2 here"):
        run(compose(*train, f"optim.rates={{{FIRST}:0.2}}", "train.steps=4"))
