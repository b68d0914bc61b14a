"""Several updates in one call are the same updates, bit for bit, and end where one is not finite."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine import step as step_module
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.step import CallLength, Step
from accumtrain.optim.config import AdafactorConfig, SgdConfig
from tests.engine.small import all_variables, examples, is_compiled_by_xla, lenet, revnet38, window_for
from tests.programs import output_of

LENET, SGD = lenet(), SgdConfig(lr=0.1, weight_decay=1e-4, momentum=0.9)
UPDATES, MICRO_STEPS, MICRO_BATCH = 5, 3, 4


def step_and_batches(config=LENET, optim=SGD, shape=(12, 12, 1), strategy=None, image_of=lambda x: x, ema=None):
    """A window's compiled functions and enough micro-batches, the same bits each time."""
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        window = window_for(config, optim, shape, clip_norm=1.0, micro_steps=MICRO_STEPS, ema=ema)
        step = Step(window)
    data = examples(UPDATES * MICRO_STEPS * MICRO_BATCH, shape)
    dataset = tf.data.Dataset.from_tensor_slices({**data, "inputs": image_of(data["inputs"])})
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = dataset.batch(MICRO_BATCH, drop_remainder=True).with_options(options)
    return window, step, iter(strategy.experimental_distribute_dataset(batches))


def test_the_sums_are_those_of_all_updates():
    _, separate, batches = step_and_batches()
    each = [apart(separate, batches, 1) for _ in range(UPDATES)]
    _, together, batches = step_and_batches()
    update = together.updates(batches, UPDATES)
    for name in ("loss", "accuracy"):
        expected = sum(float(one[name] * one["weight"]) for one in each)
        assert float(update[f"sum_{name}"]) == pytest.approx(expected, rel=1e-6)
    assert float(update["sum_weight"]) == UPDATES * MICRO_STEPS * MICRO_BATCH


def apart(step, batches, count):
    for _ in range(count):
        step.accumulate(batches, MICRO_STEPS)
        update = step.commit()
    return update


def assert_same_bits(strategy, one, other):
    copies = strategy.experimental_local_results
    assert len(set(map(id, all_variables(one)))) >= len(one.variables), "none is left out"
    for mine, its in zip(all_variables(one), all_variables(other), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(copies(mine), copies(its), strict=True)), mine.name


def compare(config, optim, shape, strategy, ema=None):
    one, separate, batches = step_and_batches(config, optim, shape, strategy, ema=ema)
    expected = apart(separate, batches, UPDATES)
    other, together, batches = step_and_batches(config, optim, shape, strategy, ema=ema)
    apart(together, batches, 1)
    together.updates(batches, 1)
    update = together.updates(batches, UPDATES - 2)
    assert int(update["step"]) == UPDATES
    assert all(np.array_equal(update[name], value) for name, value in expected.items())
    assert_same_bits(strategy, one, other)
    programs = together.programs
    for function in (programs.compiled_micro_steps, programs.compiled_commit, programs.compiled_updates):
        assert function.experimental_get_tracing_count() == 1


def test_lenet_with_sgd():
    compare(lenet(), SGD, (12, 12, 1), tf.distribute.get_strategy())


@pytest.mark.slow
def test_revnet_with_adafactor_and_averaged_weights(compose):
    optim = compose("optim=adafactor").optim
    assert isinstance(optim, AdafactorConfig)
    network = revnet38(units=(1, 1))  # batch norm
    compare(network, optim, (8, 8, 1), tf.distribute.get_strategy(), ema=lambda weights: MovingAverage(weights, 0.9))


@pytest.mark.slow
def test_on_two_replicas():
    """In a process of its own: logical devices have to be set before TensorFlow runs."""
    output_of("-c", "from tests.engine.test_step import two_replicas; two_replicas()")


def two_replicas():
    from accumtrain.devices.config import MirroredConfig

    devices = resolve_devices(MirroredConfig(virtual=2))
    assert devices.replicas == 2
    compare(revnet38(units=(1, 1)), SGD, (8, 8, 1), devices.strategy)


@pytest.mark.parametrize("bad", [0, 2, UPDATES - 1])
def test_an_update_that_is_not_finite_ends_the_call(bad):
    """Nothing of it is applied, and nothing that follows it is begun."""

    def with_a_bad_image(image):
        place = bad * MICRO_STEPS * MICRO_BATCH + 1
        return tf.tensor_scatter_nd_update(image, [[place, 0, 0, 0]], [np.nan])

    one, separate, batches = step_and_batches()
    if bad:
        apart(separate, batches, bad)
    other, together, batches = step_and_batches(image_of=with_a_bad_image)
    update = together.updates(batches, UPDATES)
    assert (bool(update["finite"]), int(update["step"])) == (False, bad)
    assert_same_bits(tf.distribute.get_strategy(), one, other)
    assert sum(1 for _ in batches) == (UPDATES - 1 - bad) * MICRO_STEPS


def test_a_state_that_is_not_finite_ends_the_call():
    """The optimizer made it of a finite gradient. The update after it is not begun."""
    window, step, batches = step_and_batches()
    momentum = window.optimizer.state[0]
    momentum.assign(tf.fill(momentum.shape, np.inf))
    update = step.updates(batches, UPDATES)
    assert (bool(update["finite"]), bool(update["state_finite"]), int(update["step"])) == (True, False, 1)
    assert sum(1 for _ in batches) == (UPDATES - 1) * MICRO_STEPS


def test_the_longer_call_is_traced_when_it_is_asked_for():
    _, step, batches = step_and_batches()
    apart(step, batches, 2)
    assert step.programs.compiled_updates.experimental_get_tracing_count() == 0


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.xla)])
def test_xla_compiles_micro_steps_where_it_is_asked_for(xla):
    window, step, batches = step_and_batches()
    assert is_compiled_by_xla(Step(window, xla=True) if xla else step, batches) is xla


def test_one_update_is_made_if_no_number_is_given():
    window, step, batches = step_and_batches()
    step.updates(batches)
    assert int(window.step) == 1


@pytest.mark.parametrize("together", [False, True])
def test_a_data_set_that_ends_inside_a_call_leaves_a_window_of_unknown_fill(together):
    """Only whole micro-steps are in its sums and counts, also where the size of a batch is known without it."""
    window = window_for(lenet(), SGD, (12, 12, 1), micro_steps=4)
    step = Step(window)
    dataset = tf.data.Dataset.from_tensor_slices(examples(12, (12, 12, 1))).batch(2, drop_remainder=True)
    batches, call = iter(dataset), step.updates
    if not together:
        step.accumulate(batches, 4)
        step.commit()
        call = step.accumulate
    with pytest.raises(tf.errors.OutOfRangeError):
        call(batches, 2 if together else 4)
    assert (float(window.examples), int(window.micro_step), int(window.step)) == (4.0, 2, 1)
    step.accumulate(iter(dataset), 4)
    before = [variable.numpy() for variable in all_variables(window)]
    with pytest.raises(ValueError, match=r"an unknown number of its 4 micro-steps: drop\(\) them"):
        step.commit()
    assert all(np.array_equal(*pair) for pair in zip(before, all_variables(window), strict=True))
    if together:
        step.drop()
    else:
        assert float(step.commit(partial=True)["examples"]) == 12.0
    step.accumulate(iter(dataset), 4)
    assert float(step.commit()["examples"]) == 8.0


def test_a_commit_that_fails_leaves_a_window_of_unknown_fill(monkeypatch):
    _, step, batches = step_and_batches()
    step.accumulate(batches, MICRO_STEPS)

    def fail():
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    with monkeypatch.context() as patched:
        patched.setattr(step.programs, "commit", fail)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            step.commit()
    with pytest.raises(ValueError, match="an unknown number"):
        step.commit()
    assert float(step.commit(partial=True)["examples"]) == MICRO_STEPS * MICRO_BATCH


def test_several_updates_begin_with_an_empty_window():
    _, step, batches = step_and_batches()
    step.accumulate(batches, 1)
    with pytest.raises(ValueError, match="holds micro-steps already"):
        step.updates(batches, 1)
    step.drop()
    assert int(step.updates(batches, 1)["step"]) == 1


# ---- the length of a call: it grows to that, and shrinks at once ----


@pytest.mark.parametrize(
    ("least", "seconds", "lengths"),
    [
        (1, [5.0, *[0.05] * 5], [1, 1, 2, 4, 8, 10]),  # doubles up to half a second
        (1, [0.01, 0.01, 0.2, 0.2, 1.0, 1.0], [1, 2, 4, 2, 2, 1]),  # shrinks at once
        (1, [0.3] * 4, [1, 1, 1, 1]),
        (10, [0.05] * 5, [1, 2, 4, 8, 10]),
        (10, [0.06] * 4, [1, 1, 1, 1]),  # too few would fit
        (10, [0.04, 0.04, 0.04, 0.06, 0.06], [1, 2, 4, 8, 1]),
    ],
)
def test_the_length_follows_the_seconds_of_a_part(least, seconds, lengths, monkeypatch):
    length, chosen = CallLength(least), []
    for duration in seconds:
        count = length.next(1000)
        times = iter([0.0, duration * count])
        monkeypatch.setattr(step_module, "time", SimpleNamespace(perf_counter=lambda times=times: next(times)))
        with length.timed(count):
            chosen.append(count)
    assert chosen == lengths


def test_never_beyond_what_remains():
    length = CallLength()
    for _ in range(5):
        with length.timed(length.next(3)):
            pass
    assert length.next(3) == 3
