"""task=regress: its losses, units, metrics, refusals, and what a guess would have."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.source import ArraySplit
from accumtrain.dispatch import run
from accumtrain.errors import ConfigError, DataError
from accumtrain.tasks.answer import build_answer
from accumtrain.tasks.config import AbsoluteErrorConfig, HuberConfig, SquaredErrorConfig
from accumtrain.tasks.objective import build_objective, open_objective, open_stored
from accumtrain.tasks.regress import build_absolute_error, build_huber, build_squared_error
from tests.tasks import canvases
from tests.train.conftest import json_of, records_of

TASK = ("task=regress", "data=canvas_numbers")
SMALL = ("model=lenet5", "optim=adam", "optim.lr=0.005", "batch_size=32", "accum.steps=2", "run.name=one")
NAN = math.nan


def near_then_line(error):
    return error**2 / 2 if abs(error) <= 0.5 else 0.5 * abs(error) - 0.125


LOSSES = {
    "squared_error": (build_squared_error, SquaredErrorConfig(), lambda error: error**2),
    "absolute_error": (build_absolute_error, AbsoluteErrorConfig(), abs),
    "huber": (build_huber, HuberConfig(delta=0.5), near_then_line),
}


@pytest.mark.parametrize("name", LOSSES)
def test_unknown_numbers_weigh_nothing(name):
    build, config, by_hand = LOSSES[name]
    numbers = np.array([[1, 0.25, NAN], [NAN, NAN, NAN], [0, -3, 1], [NAN, 1, 0]], np.float32)
    outputs = tf.constant([[0.75, -2, 5], [1, 2, 3], [-0.5, 4, 0.25], [9, -1, 1.5]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        values = build(config)(tf.constant(numbers), outputs)
    expected = [
        sum(by_hand(said - true) for true, said in zip(*rows, strict=True) if not math.isnan(true)) / 3
        for rows in zip(numbers.tolist(), outputs.numpy().tolist(), strict=True)
    ]
    assert values.dtype == tf.float64
    assert values.numpy().tolist() == pytest.approx(expected, rel=1e-15)
    gradient = tape.gradient(values, outputs).numpy()
    assert ((gradient == 0) == np.isnan(numbers)).all(), "of unknown ones exactly, and of no other"


def test_huber_is_smooth_where_the_line_begins():
    loss = build_huber(HuberConfig(delta=2.0))
    outputs = tf.constant([[2.0], [2.0 + 1e-9], [-2.0], [-5.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        values = loss(tf.zeros([4, 1], tf.float64), outputs)
    assert values.numpy() == pytest.approx([2.0, 2.0, 2.0, 8.0], rel=1e-8)
    assert tape.gradient(values, outputs).numpy().ravel().tolist() == [2.0, 2.0, -2.0, -2.0]


# ---- units -----------------------------------------------------------------------------------------------------------


def test_targets_are_standardised_by_the_training_examples(compose):
    config = compose(*TASK, "data.val_fraction=0.25")
    objective = open_objective(config)
    stored, learn = objective.stored, objective.prepare_targets
    train = stored.train.known_labels.astype(np.float64)
    mean, std = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    assert objective.facts == {"mean": pytest.approx(mean.tolist()), "std": pytest.approx(std.tolist())}
    for name, split in stored.splits.items():
        learned = learn(tf.constant(split.known_labels)).numpy()
        expected = (split.known_labels - mean) / std
        np.testing.assert_allclose(learned, expected, rtol=1e-6, atol=1e-6, err_msg=name)
    own = learn(tf.constant(stored.train.known_labels)).numpy()
    np.testing.assert_allclose(np.nanmean(own, axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(own, axis=0), 1, rtol=1e-6)


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory, registered):
    folder = tmp_path_factory.mktemp("numbers")
    config = compose(*TASK, *SMALL, "train.steps=60", "eval.every=20", f"run.dir={folder / 'runs'}")
    run(config)
    return config


@pytest.mark.slow
def test_answers_are_in_the_units_of_the_data(trained):
    loaded = accumtrain.load_run("one", run_dir=trained.run.dir)
    images, _, numbers = canvases.compose(canvases.load_digits()[1], 90, seed=1)
    found = loaded.predict(images).answers
    assert loaded.class_names == canvases.NUMBERS
    errors = np.abs(found - numbers).mean(axis=0)
    assert (errors < 0.9 * np.abs(numbers - numbers.mean(axis=0)).mean(axis=0)).all(), errors
    facts = json_of(loaded.path, "inputs")["facts"]
    outputs = loaded.model(tf.constant(open_prepared(trained, images))).numpy()
    np.testing.assert_allclose(found, outputs * facts["std"] + facts["mean"], rtol=1e-5, atol=1e-4)


def open_prepared(config, images):
    """Pixels as the model takes them."""
    mean, std = config.data.mean or [0.0], config.data.std or [1.0]
    return ((images / config.data.WHITE - mean) / std).astype(np.float32)


@pytest.mark.parametrize("form", [np.float32, np.float64])
@pytest.mark.parametrize("value", [2.5, 0.1])
def test_a_number_that_is_always_the_same_is_refused(compose, form, value):
    config = compose(*TASK)
    numbers = np.array([[1.0, value], [2.0, NAN], [3.0, value], [4.0, value]] * 11, form)
    with pytest.raises(DataError, match=rf"row is {value} for all training examples that have it, so there is nothing"):
        build_objective(config, data_of(config, numbers))


def test_a_number_may_have_any_name_in_predictions(compose):
    trained_on = TrainedOn(accumtrain.Arrays((3,)), "numbers", ["file"])
    told = build_answer(compose(*TASK), trained_on, {"mean": [0.0], "std": [1.0]}).tell(np.array([[0.5]], np.float32))
    assert told.records == [{"values": {"file": 0.5}}], "beside the key file of a line"


def test_a_number_that_is_never_known_is_refused(compose):
    config = compose(*TASK)
    numbers = np.array([[1.0, NAN], [2.0, NAN]], np.float32)
    with pytest.raises(DataError, match=r"row is never known, so there is nothing to learn: leave its column out"):
        build_objective(config, data_of(config, numbers))


def test_numbers_that_float32_can_not_tell_apart_are_refused(compose):
    config = compose(*TASK)
    numbers = np.array([[1.7e9, 2000.0], [1.7e9 + 3600, 2020.0], [1.7e9 + 1800, NAN]], np.float32)
    with pytest.raises(DataError, match=r"is between 1700000000 and 1700003584, .*: subtract 1700000000 from"):
        build_objective(config, data_of(config, numbers))
    facts = build_objective(config, data_of(config, numbers - np.float32([1.7e9, 0]))).facts
    assert facts["std"] == pytest.approx([np.std([0, 3600, 1800]), 10.0], rel=0.05)


def data_of(config, numbers):
    train = ArraySplit(np.zeros([len(numbers), 4, 4, 1], np.uint8), numbers)
    return replace(open_stored(config), train=train, num_classes=2, class_names=canvases.NUMBERS[:2])


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metrics", "best", "higher"),
    [(["r2"], "r2", True), (["mae"], "mae", False), (["rmse", "r2"], "rmse", False), ([], "loss", False)],
)
def test_what_is_chosen_is_measured_and_the_first_decides(compose, tmp_path, metrics, best, higher):
    given = (*TASK, *SMALL, "train.steps=4", "eval.every=1", f"eval.metrics=[{','.join(metrics)}]")
    summary = run(compose(*given, f"run.dir={tmp_path}"))
    assert summary["test"].keys() == {"loss", *metrics}
    assert summary["best_by"] == {"metric": best, "higher_is_better": higher}
    values = [record[best] for record in records_of(tmp_path / "one", "test")]
    assert summary["best"][best] == (max(values) if higher else min(values))


@pytest.mark.slow
@pytest.mark.parametrize(("monitor", "higher"), [("r2", True), ("mae", False), ("loss", False)])
def test_a_monitor(compose, tmp_path, monitor, higher):
    given = (*TASK, *SMALL, "train.steps=6", "eval.every=2", f"train.monitor={monitor}", f"run.dir={tmp_path}")
    summary = run(compose(*given))
    assert summary["best_by"] == {"metric": monitor, "higher_is_better": higher}
    values = [record[monitor] for record in records_of(tmp_path / "one", "test")]
    assert summary["best"][monitor] == (max(values) if higher else min(values))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["absolute_error", "huber", "squared_error"])
def test_every_loss_learns(compose, tmp_path, loss):
    given = (*TASK, *SMALL, "train.steps=60", "eval.every=60", f"loss={loss}", f"run.dir={tmp_path}")
    summary = run(compose(*given))
    assert summary["test"]["r2"] > 0.3
    assert summary["test"].keys() == {"loss", "mae", "rmse", "r2"}


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ("loss=cross_entropy", "takes classes, .* are numbers; choose loss=squared_error or ", ("loss=huber",)),
        ("loss=sigmoid_cross_entropy", "takes labels, .* or leave loss out", ()),
        ("eval.metrics=[accuracy]", "accuracy takes classes, .* choose from mae, rmse, r2", ("eval.metrics=[rmse]",)),
        ("train.monitor=map", "train.monitor: map takes labels, .* from mae, rmse, r2", ("train.monitor=r2",)),
        ("data.mixup=0.2", "data.mixup=0.2: does not go with task=regress, .* leave it out", ()),
        ("data.cutmix=0.2", "data.cutmix=0.2: does not go with task=regress, .* leave it out", ()),
        ("data.sampling=balanced", "does not go with task=regress, .* leave it out", ()),
        (
            "data=digits",
            "data=digits has no numbers for it; choose task=classify or ",
            ("task=classify", "data=digits"),
        ),
        ("task=multilabel", "canvas_numbers has no labels for it; choose task=regress or ", ("task=regress",)),
    ],
)
def test_what_is_refused_and_the_remedy(compose, given, said, remedy):
    with pytest.raises(ConfigError, match=said):
        compose(*TASK, given)
    compose(*TASK, *remedy)


@pytest.mark.parametrize(("augment", "told"), [("none", False), ("shift", True)])
def test_images_that_are_moved_under_their_numbers_are_told(compose, augment, told):
    notes = open_objective(compose(*TASK, f"data.augment={augment}")).data.notes
    assert any("leaves their numbers as they are" in note for note in notes) == told


# ---- a guess ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber"])
def test_the_loss_of_a_guess(compose, loss):
    """Of the mean of each number in training."""
    config = compose(*TASK, "data.val_fraction=0.25", f"loss={loss}")
    objective = open_objective(config)
    data = objective.stored
    by_hand = {"squared_error": np.square, "absolute_error": np.abs, "huber": huber_of_1}[loss]
    train = data.train.known_labels
    mean, std = np.nanmean(train, axis=0), np.nanstd(train, axis=0)
    expected = {
        name: np.mean(np.nan_to_num(by_hand((split.known_labels - mean) / std))) for name, split in data.splits.items()
    }
    found = objective.guess()
    assert found == pytest.approx(expected, rel=1e-5)
    if loss == "squared_error":
        assert found["train"] == pytest.approx(np.mean(~np.isnan(train))), "1 standard deviation of each that is known"


def huber_of_1(error):
    return np.where(np.abs(error) <= 1, error**2 / 2, np.abs(error) - 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps", "told"), [("1e-9", 20, True), ("0.005", 60, False)])
def test_a_model_that_has_learned_nothing_says_so(compose, tmp_path, capsys, rate, steps, told):
    given = (*TASK, *SMALL, f"optim.lr={rate}", f"train.steps={steps}", f"eval.every={steps}")
    run(compose(*given, f"run.dir={tmp_path}"))
    assert ("is no better than a guess" in " ".join(capsys.readouterr().err.split())) == told
