"""A RevNet tells that its streams left the range of their numbers, and that a reversal was not exact."""

from dataclasses import replace

import pytest
import tensorflow as tf

from accumtrain.engine.window import Window
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.sgd import SGD
from tests.engine.small import CLASSES, examples, revnet38

SHAPE, UNITS = (8, 8, 3), (2, 1, 3)


def window_of(units=UNITS, **keys):
    model = build_model(replace(revnet38(units=units), **keys), ModelSpec(SHAPE, CLASSES, seed=3))
    return Window(model, SGD(learning_rate=0.1)), model.segments[1:-1]


def update(window):
    return tf.function(lambda: (window.accumulate(examples(8, SHAPE)), window.commit())[1], autograph=False)()


@pytest.mark.parametrize("stage", range(len(UNITS)))
def test_every_stage_looks_at_its_last_streams(stage):
    window, stages = window_of(snap_bits=24)
    kernel = stages[stage].units[-1].g.function.convs[-1].kernel
    assert len(stages[stage].units) == UNITS[stage]
    kernel.assign(1e5 * kernel)
    told = update(window)
    assert (bool(told["in_range"]), bool(told["exact"]), bool(told["compared"])) == (False, True, True)


@pytest.mark.parametrize(("snap_bits", "exact"), [(24, False), (1, False), (0, True)], ids=["24", "1", "floats"])
def test_a_reversal_to_other_bits_is_told_where_it_must_be_exact(snap_bits, exact):
    """With 0 bits streams are floats, whose reversal never is, so it is not looked at."""
    window, stages = window_of(snap_bits=snap_bits)
    unit = stages[0].units[-1]
    reverse = unit.reverse

    def wrong(*arguments):
        (first, second), gradients = reverse(*arguments)
        return (second, first), gradients

    unit.reverse = wrong
    told = update(window)
    assert (bool(told["in_range"]), bool(told["exact"])) == (True, exact)
    assert bool(told["compared"]) == (snap_bits > 0)


@pytest.mark.slow
@pytest.mark.parametrize("filters", [[32, 32, 64], [16, 32, 64]], ids=["no shortcuts", "shortcuts in the first unit"])
def test_streams_of_integers_give_the_loss_of_floats(filters):
    windows = (window_of((2, 1), snap_bits=snap_bits, filters=filters)[0] for snap_bits in (24, 0))
    of_integers, of_floats = (float(update(window)["loss"]) for window in windows)
    assert of_integers == pytest.approx(of_floats, rel=1e-5)
