"""The promises of every optimizer to the engine. tests/optim/ has the cases of each rule, and two replicas of all."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.optim.config import OPTIMIZERS
from accumtrain.registry import load
from accumtrain.train.build import build_optimizer
from tests.contract.examples import example_of
from tests.optim.references import by_rule

pytestmark = pytest.mark.parametrize("name", OPTIMIZERS.names)

SHAPES = [(), (5,), (4, 6), (3, 4, 5), (3, 3, 2, 5)]
UPDATES = 10
DRAW = np.random.default_rng(0)
WEIGHTS = [DRAW.normal(size=shape).astype(np.float32) for shape in SHAPES]
GRADIENTS = [[DRAW.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in range(UPDATES)]
DECAYED = [len(shape) >= 2 for shape in SHAPES]


class Trained:
    """An optimizer and its variables. `update` makes updates of them, one for each set of gradients."""

    def __init__(self, optimizer, dtype=tf.float32, only: Sequence[int] = range(len(SHAPES)), jit: bool = False):
        self.optimizer, self.dtype, self.only, self.done = optimizer, dtype, only, 0
        self.variables = [tf.Variable(WEIGHTS[place], dtype=dtype, name=f"{place}/kernel") for place in only]
        optimizer.build(self.variables, [DECAYED[place] for place in only])
        self.apply = tf.function(self._apply, autograph=False, jit_compile=jit or None)

    def _apply(self, step: tf.Tensor, gradients: list[tf.Tensor]) -> None:
        self.optimizer.apply(gradients, self.optimizer.learning_rate(step), step)

    def update(self, gradients: Sequence[Sequence[np.ndarray]]) -> Trained:
        for values in gradients:
            gradients_now = [tf.constant(values[place], self.dtype) for place in self.only]
            self.apply(tf.constant(self.done, tf.int64), gradients_now)
            self.done += 1
        return self

    @property
    def weights(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]

    @property
    def rates(self) -> list[float]:
        return [float(self.optimizer.learning_rate(tf.constant(step, tf.int64))) for step in range(UPDATES)]


def build(name: str):
    return build_optimizer(example_of("optim", name))


def assert_same_bits(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(got, want, strict=True)


def assert_near(actual: list[np.ndarray], expected: list[np.ndarray], share: float) -> None:
    """The error is that share of the way travelled, beside the roundings of each new weight."""
    for got, want, start in zip(actual, expected, WEIGHTS, strict=True):
        rounding = UPDATES * np.finfo(got.dtype).eps * np.linalg.norm(want)
        assert np.linalg.norm(got - want) <= share * np.linalg.norm(want - start) + rounding


@pytest.mark.parametrize(("dtype", "share"), [(tf.float64, 1e-12), (tf.float32, 1e-5)])
def test_agrees_with_its_reference(name, dtype, share):
    trained = Trained(build(name), dtype).update(GRADIENTS)
    series = [[values[place].astype(np.float64) for values in GRADIENTS] for place in range(len(SHAPES))]
    starts = [weight.astype(np.float64) for weight in WEIGHTS]
    config = example_of("optim", name)
    expected = [by_rule(config, start, own, trained.rates) for start, own in zip(starts, series, strict=True)]
    assert_near(trained.weights, expected, share)


def test_together_as_one_by_one(name):
    together = Trained(build(name)).update(GRADIENTS)
    alone = [Trained(build(name), only=[place]).update(GRADIENTS).weights[0] for place in range(len(SHAPES))]
    assert_same_bits(together.weights, alone)


def test_a_scale_is_that_of_the_gradients(name):
    """The commit hands over sums and 1 / examples; a power of two leaves the bits."""
    optimizer = build(name)
    summed = Trained(optimizer)
    step, gradients = tf.constant(0, tf.int64), [tf.constant(4.0 * gradient) for gradient in GRADIENTS[0]]
    optimizer.apply(gradients, optimizer.learning_rate(step), step, 0.25)
    plain = Trained(build(name)).update(GRADIENTS[:1])
    assert_same_bits(summed.weights, plain.weights)
    for slot, expected in zip(summed.optimizer.state, plain.optimizer.state, strict=True):
        # some rules give the same weights whatever the size of the gradients, but not the same slots
        np.testing.assert_allclose(slot, expected, rtol=1e-6)


def test_a_checkpoint_continues_bit_for_bit(name, tmp_path):
    straight = Trained(build(name)).update(GRADIENTS)
    first = Trained(build(name)).update(GRADIENTS[:4])
    state = tf.train.Checkpoint(optimizer=first.optimizer, weights=first.variables)
    second = Trained(build(name))
    restored = tf.train.Checkpoint(optimizer=second.optimizer, weights=second.variables)
    restored.restore(state.save(str(tmp_path / "state"))).assert_consumed()
    second.done = first.done
    assert_same_bits(second.update(GRADIENTS[4:]).weights, straight.weights)
    assert_same_bits([slot.numpy() for slot in second.optimizer.state], [s.numpy() for s in straight.optimizer.state])


@pytest.mark.slow
@pytest.mark.xla
def test_xla_agrees_to_a_rounding(name):
    compiled = Trained(build(name), jit=True).update(GRADIENTS)
    assert_near(compiled.weights, Trained(build(name)).update(GRADIENTS).weights, share=1e-5)


def test_the_class_takes_the_keys_of_its_row(name):
    """As keyword arguments, with defaults for what the configuration has defaults for; so it is for programs too."""
    config, make = example_of("optim", name), load(OPTIMIZERS[name].build)
    known = inspect.signature(make).parameters
    assert set(known) == set(config.arguments)
    assert all(each.kind is each.KEYWORD_ONLY for key, each in known.items() if key != "learning_rate")
    by_hand = Trained(make(**config.arguments)).update(GRADIENTS)
    assert_same_bits(by_hand.weights, Trained(build(name)).update(GRADIENTS).weights)


@pytest.mark.parametrize("key", ["lr", "momentun", "clip_norm", "kind"])
def test_an_unknown_keyword_is_a_type_error(name, key):
    with pytest.raises(TypeError, match=key):
        load(OPTIMIZERS[name].build)(**example_of("optim", name).arguments, **{key: 0.5})
