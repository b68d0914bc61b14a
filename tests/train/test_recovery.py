"""Windows and states that are not finite: their place is named, and the run goes on or stops."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.dispatch import run
from accumtrain.engine import step
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window, all_finite
from accumtrain.errors import DivergedError
from accumtrain.models.config import RevNetConfig
from accumtrain.optim.config import AdafactorConfig, AdamConfig, KerasOptimConfig, SgdConfig
from accumtrain.train.recovery import describe_state, describe_window, remedy
from tests.engine.small import examples, resnet20, train, window_for
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

SHAPE = (8, 8, 1)
OPTIMIZERS = {
    "sgd": SgdConfig(lr=0.01, momentum=0.9),
    "adam": AdamConfig(lr=1e-3),
    "adafactor": AdafactorConfig(lr=0.01),
    "lion": KerasOptimConfig(lr=1e-4, name="Lion"),
}


def window_with(optim="sgd", **options):
    return window_for(resnet20(units=(1, 1)), OPTIMIZERS[optim], SHAPE, **options)


def batches(count=3):
    return [examples(8, SHAPE, seed) for seed in range(count)]


def values(variables):
    return [variable.numpy() for variable in variables]


def description(window, batch):
    """What is said of a window of micro-batches of 8."""
    return describe_window(
        window, Step(window), TensorFlowRuntime(), iter(tf.data.Dataset.from_tensor_slices(batch).batch(8))
    )


def plant_after_updates(window, variable, value, step=1):
    """Make the optimizer leave `value` in a variable in the update after `step` updates."""
    apply = window.optimizer.apply

    def planted(gradients, rate, done, scale):
        apply(gradients, rate, done, scale)
        variable.assign_add(tf.where(done == step, tf.cast(value, variable.dtype), 0.0) * tf.ones_like(variable))

    window.optimizer.apply = planted


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_healthy_updates_are_finite(optim):
    updates = train(window_with(optim), batches(), 2)
    assert all(update["finite"] and update["state_finite"] for update in updates)


@pytest.mark.parametrize("value", [pytest.param(float("inf"), marks=pytest.mark.slow), float("nan")])
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("place", ["weight", "optimizer state", "statistics"])
def test_what_an_update_leaves_is_looked_at(optim, place, value):
    window = window_with(optim)
    variables = {
        "weight": window.variables_[-1],
        "optimizer state": [each for each in window.optimizer.state if each.dtype.is_floating][-1],
        "statistics": window.statistics.variables_[-1],
    }
    plant_after_updates(window, variables[place], value)
    updates = train(window, batches(2), 2)
    assert [update["finite"] for update in updates] == [True, True]
    assert [update["state_finite"] for update in updates] == [True, False]
    assert describe_state(window).startswith("optimizer/" if place == "optimizer state" else "model/")


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, " and 1 more"), (6, " and 3 more")])
def test_three_variables_are_named(count, more):
    window = window_with()
    for variable in window.variables_[:count]:
        variable.assign(float("nan") * variable)
    text = describe_state(window)
    assert text.endswith(f"{more} infinite or NaN")
    assert (" more" in text) == bool(more)
    assert text.count("model/") == min(count, 3)


def test_a_window_that_is_not_finite_changes_nothing_and_is_described():
    window = window_with(micro_steps=4)
    before = values([*window.model.variables, *window.optimizer.state])
    bad = examples(32, SHAPE)
    bad["inputs"] = tf.tensor_scatter_nd_update(bad["inputs"], [[20, 0, 0, 0]], [float("nan")])  # of micro-step 3
    (update,) = train(window, [bad], 4)
    assert (update["finite"], update["state_finite"], update["step"]) == (False, True, 0)
    np.testing.assert_equal(values([*window.model.variables, *window.optimizer.state]), before)
    text = description(window, bad)
    assert text.startswith("at micro-step 3 of 4 in ")
    assert "model/" in text
    assert all(not buffer.numpy().any() for buffer in window.buffers)


def test_a_loss_that_is_not_finite_is_named_before_the_gradients():
    window = window_with(micro_steps=4)
    bad = examples(32, SHAPE)
    bad["weight"] = tf.tensor_scatter_nd_update(bad["weight"], [[9]], [float("inf")])  # of micro-step 2
    assert description(window, bad).startswith("at micro-step 2 of 4 in the loss and the gradients of model/")


def test_statistics_that_overflow_stop_the_update():
    window = window_with()
    before = values(window.statistics.variables_)
    huge = examples(8, SHAPE)
    huge["inputs"] *= 1e30  # batch norm makes loss and gradient finite again
    (update,) = train(window, [huge], 2)
    assert not update["finite"]
    assert np.isfinite(update["loss"])
    np.testing.assert_equal(values(window.statistics.variables_), before)
    assert description(window, huge) == "in the batch statistics"


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda window: None, "though it is when its micro-batches are computed once more"),
        (lambda window: setattr(window, "schedule", lambda step: tf.constant(np.inf)), "in the learning rate"),
        (lambda window: window.gradients[0].assign_add(1e30 + window.gradients[0]), "in the norm of the gradient"),
    ],
    ids=["nothing", "rate", "norm"],
)
def test_what_no_micro_step_shows_is_named_by_itself(plant, said):
    window = window_with(micro_steps=2)
    plant(window)
    assert description(window, examples(16, SHAPE)) == said


def test_several_updates_in_one_call_end_at_the_bad_one():
    window = window_with()
    plant_after_updates(window, window.variables_[0], float("inf"))
    data = {key: tf.concat([each[key] for each in batches(5)], 0) for key in batches(1)[0]}
    step = Step(window)
    update = step.updates(iter(tf.data.Dataset.from_tensor_slices(data).batch(8)), 5)
    assert update["step"].numpy() == 2
    assert not update["state_finite"].numpy()


@pytest.mark.parametrize(
    ("values", "finite"),
    [([1e38], True), ([3e38, -3e38, 1.0], True), ([float("inf")], False), ([float("inf"), float("-inf")], False)],
)
def test_all_finite(values, finite):
    assert bool(all_finite([tf.constant(values)])) == finite


def test_a_metric_that_was_not_finite_is_so_once():
    def label_over_weight(labels, logits):
        return tf.where(labels == 3, float("nan"), 1.0)

    window = window_with(metrics={"odd": label_over_weight})
    data = batches(3)
    data[0]["targets"] = tf.fill([8], tf.constant(3, data[0]["targets"].dtype))
    for each in data[1:]:
        each["targets"] = tf.fill([8], tf.constant(1, each["targets"].dtype))
    updates = train(window, data, 2)
    assert [bool(np.isnan(update["odd"])) for update in updates] == [True, False, False]


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        return compose(
            *("data=synthetic", "data.image_size=16", "data.train_examples=64", "data.test_examples=16"),
            *("model=lenet5", "optim=sgd", "optim.lr=0.01", "batch_size=16", "accum.steps=2", "train.steps=6"),
            *("checkpoint.every=2", f"run.dir={tmp_path}", "run.name=one", *overrides),
        )

    return of


@pytest.fixture
def planted(monkeypatch):
    """Make the loss of some windows NaN: of the updates after so many, as often as `times` says."""

    def plant(*steps, times=1):
        left = tf.Variable(times, dtype=tf.int64)
        commit = Window.commit

        def with_nan(self):
            bad = tf.reduce_any(self.step == tf.constant(steps, tf.int64)) & (left > 0)
            self.loss.assign_add(tf.where(bad, float("nan"), 0.0))
            left.assign_sub(tf.cast(bad, tf.int64))
            return commit(self)

        monkeypatch.setattr(Window, "commit", with_nan)

    return plant


def assert_all_finite(folder):
    found = [pair for index in folder.rglob("state.index") for pair in tensors_of(index.parent).items()]
    assert found
    assert all(np.all(np.isfinite(value)) or "best_loss" in name for name, value in found)


def test_stop_says_where_and_keeps_the_last_update(config, planted, tmp_path):
    planted(3)
    with pytest.raises(DivergedError, match=r"update 4 is not finite.*the state after update 3 is saved"):
        run(config())
    assert (tmp_path / "one/checkpoints/step-3").is_dir()
    assert_all_finite(tmp_path / "one")


def test_weights_that_became_infinite_are_not_saved(config, tmp_path):
    """The loss and the gradient are finite, the rate is not too large for float32, what it makes of the weights is."""
    with pytest.raises(DivergedError, match=r"update 1 left .* infinite or NaN.*is not saved") as error:
        run(config("optim.lr=3e38", "optim.momentum=0"))
    assert error.value.exit_code == 4
    assert [path.name for path in (tmp_path / "one/checkpoints").iterdir()] == ["step-0"]
    assert_all_finite(tmp_path / "one")
    assert json_of(tmp_path / "one")["status"] == "diverged"


def test_skip_counts_and_continues_with_the_next_examples(config, planted, tmp_path):
    planted(3)
    summary = run(config("run.on_nonfinite=skip"))
    assert (summary["status"], summary["recovery"]) == ("completed", {"skipped": 1, "rollbacks": 0})
    assert json_of(tmp_path / "one/checkpoints/step-6", "manifest")["recovery"]["skipped"] == 1


@pytest.mark.slow
def test_skip_has_a_limit_in_a_row(config, planted):
    planted(3, times=3)
    with pytest.raises(DivergedError, match="update 4 is not finite"):
        run(config("run.on_nonfinite=skip", "run.max_nonfinite=2"))


@pytest.mark.slow
def test_a_run_that_skipped_continues_bit_for_bit(config, planted, tmp_path):
    planted(1)
    run(config("run.on_nonfinite=skip", "run.name=parts", "train.steps=4", "schedule=constant"))
    run(config("run.on_nonfinite=skip", "run.name=parts", "schedule=constant"))
    planted(1)
    run(config("run.on_nonfinite=skip", "run.name=whole", "schedule=constant"))
    assert_same_tensors(*(tensors_of(tmp_path / name / "checkpoints/step-6") for name in ("parts", "whole")))


def test_rollback_goes_to_the_last_checkpoint_with_a_lower_rate(config, planted, tmp_path):
    planted(3)
    summary = run(config("run.on_nonfinite=rollback", "schedule=constant", "log.every=1"))
    assert (summary["status"], summary["recovery"]) == ("completed", {"skipped": 0, "rollbacks": 1})
    records = records_of(tmp_path / "one", "train")
    assert [each["step"] for each in records] == [1, 2, 3, 4, 5, 6]
    assert [each["learning_rate"] for each in records] == pytest.approx([0.01] * 2 + [0.005] * 4)


def test_rollback_to_an_earlier_batch_goes_on_with_that(config, planted, tmp_path):
    """Batches of 32 begin after update 4. Update 5 leads back to the start."""
    planted(4)
    keys = ("batch_ramp={0.4:32}", "schedule=constant", "log.every=1", "checkpoint.every=5", "train.steps=6")
    summary = run(config("run.on_nonfinite=rollback", *keys))
    assert summary["recovery"]["rollbacks"] == 1
    records = records_of(tmp_path / "one", "train")
    assert [each["epoch"] for each in records] == [0.25, 0.5, 0.75, 1.0, 1.5, 2.0]
    manifest = json_of(tmp_path / "one/checkpoints/step-6", "manifest")
    assert manifest["examples"] == 4 * 16 + 2 * 32


@pytest.mark.slow
def test_rollback_has_a_limit(config, planted, tmp_path):
    planted(3, times=100)
    with pytest.raises(DivergedError):
        run(config("run.on_nonfinite=rollback", "run.max_nonfinite=3"))
    assert json_of(tmp_path / "one")["recovery"]["rollbacks"] == 3
    assert_all_finite(tmp_path / "one")


@pytest.mark.slow
def test_windows_with_updates_between_them_are_not_in_a_row(config, planted, monkeypatch):
    """Also when one call makes several updates and ends at the bad one."""
    monkeypatch.setattr(step, "SECONDS_PER_CALL", 1e3)
    planted(10)
    planted(16)
    several = ("train.steps=24", "log.every=24", "checkpoint.every=24", "eval.every=24")
    summary = run(config("run.on_nonfinite=skip", "run.max_nonfinite=1", *several))
    assert summary["recovery"]["skipped"] == 2


@pytest.mark.slow
def test_streams_that_leave_their_range_end_a_run_with_the_remedy(config, tmp_path):
    """Streams of 26 bits reach 16, and a rate of 5 brings some beyond. The remedy goes on after the last update."""
    small = ("model=revnet38", "model.units=[1,1]", "model.filters=[8,8,16]", "optim.lr=5")
    with pytest.raises(DivergedError, match="the state after update") as error:
        run(config(*small, "model.snap_bits=26"))
    done = json_of(tmp_path / "one")["step"]
    assert 0 < done < 6
    assert "from -16 to 16 of numbers with model.snap_bits=26" in str(error.value)
    assert "go on with model.snap_bits=22 run.name=one run.resume=force" in str(error.value)
    assert run(config(*small, "model.snap_bits=22", "run.resume=force"))["step"] == 6
    steps = [record["step"] for record in records_of(tmp_path / "one", "train")]
    assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["revnet38", "revnet110", "revnet164"])
def test_streams_stay_in_range_at_the_full_rate_of_the_recipe(compose, tmp_path, model):
    """Without a warm-up they are largest in the first updates: those of RevNet-110 reach 139 here."""
    data = ("data=synthetic", "data.image_size=32", "data.train_examples=512", "data.test_examples=64")
    sizes = ("batch_size=64", "accum.steps=2", "train.steps=8")
    summary = run(compose(f"model={model}", *data, *sizes, f"run.dir={tmp_path}"))
    assert (summary["status"], summary["step"]) == ("completed", 8)


@pytest.mark.parametrize(
    ("bits", "told"),
    [
        (22, "model.snap_bits=18 run.name=one run.resume=force, whose range is 16 times as large; or lower optim.lr"),
        (4, "model.snap_bits=0 run.name=one run.resume=force, whose floats have no such range; or lower optim.lr"),
        (1, "model.snap_bits=0 run.name=one run.resume=force, whose floats have no such range; or lower optim.lr"),
    ],
)
def test_the_remedy_for_streams_has_a_wider_range(bits, told):
    assert remedy(RevNetConfig(snap_bits=bits), "one", in_range=False).startswith(f"go on with {told}")
