"""task=multilabel: its loss and weights, thresholds, metrics, refusals, and what a guess would have."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.config.registries import register_metric
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.dispatch import run
from accumtrain.errors import ConfigError
from accumtrain.tasks import scores
from accumtrain.tasks.config import SigmoidCrossEntropyConfig
from accumtrain.tasks.multilabel import LabelAnswer, build_loss
from accumtrain.tasks.objective import open_objective
from tests.tasks import canvases
from tests.train.conftest import json_of, records_of

TASK = ("task=multilabel", "data=canvas_labels")
SMALL = ("model=lenet5", "optim=adam", "optim.lr=0.005", "batch_size=32", "accum.steps=2", "run.name=one")
NAN = math.nan


# ---- the loss --------------------------------------------------------------------------------------------------------


def by_hand(labels, logits, weights):
    """The loss of an example, label by label."""
    total = 0.0
    for label, logit, weight in zip(labels, logits, weights, strict=True):
        if not math.isnan(label):
            p = 1 / (1 + math.exp(-logit))
            total -= weight * math.log(p) if label == 1 else math.log(1 - p)
    return total / len(labels)


@pytest.mark.parametrize("weights", [None, [2.0, 0.5, 1.0]])
def test_unknown_labels_weigh_nothing(weights):
    labels = np.array([[1, 0, NAN], [NAN, NAN, NAN], [0, 1, 1], [NAN, 1, 0]], np.float32)
    logits = tf.constant([[0.3, -2.0, 5.0], [1.0, 2.0, 3.0], [-0.5, 4.0, 0.0], [9.0, -1.0, 1.5]], tf.float64)
    named = None if weights is None else dict(zip("abc", weights, strict=True))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        values = build_loss(SigmoidCrossEntropyConfig(positive_weights=named))(tf.constant(labels), logits)
    expected = [by_hand(*rows, weights or [1.0] * 3) for rows in zip(labels, logits.numpy(), strict=True)]
    assert values.dtype == tf.float64
    assert values.numpy() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    gradient = tape.gradient(values, logits).numpy()
    assert ((gradient == 0) == np.isnan(labels)).all(), "of unknown ones exactly, and of no other"


def test_large_logits_have_finite_losses():
    labels, logits = tf.constant([[1.0, 0.0, NAN]]), tf.constant([[-1e4, 1e4, 1e30]])
    assert float(build_loss(SigmoidCrossEntropyConfig())(labels, logits)[0]) == pytest.approx(2e4 / 3)


def test_the_gradient_where_a_logit_is_0():
    """As of a last layer that begins with zeros: the probability of a half, less the label."""
    logits = tf.zeros([1, 2], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = build_loss(SigmoidCrossEntropyConfig())(tf.constant([[1.0, 0.0]]), logits)
    assert tape.gradient(value, logits).numpy().tolist() == [[-0.25, 0.25]]


# ---- weights ---------------------------------------------------------------------------------------------------------


def weights_of(compose, *overrides):
    config = compose(*TASK, *overrides)
    return open_objective(config).loss_config.positive_weights


def test_weights_by_name(compose):
    """In the order of the labels; 1 for those that are not named."""
    found = weights_of(compose, r"loss.positive_weights={digit\ 7:3,digit\ 2:0.5}")
    assert list(found) == canvases.LABELS
    assert list(found.values()) == [1, 1, 0.5, 1, 1, 1, 1, 3, 1, 1]


def test_balanced_weights_give_both_sides_the_same_sum(compose):
    found = weights_of(compose, "loss.positive_weights=balanced", "data.val_fraction=0.25")
    labels = open_objective(compose(*TASK, "data.val_fraction=0.25")).stored.train.known_labels
    for weight, column in zip(found.values(), labels.T, strict=True):
        assert weight * np.sum(column == 1) == pytest.approx(np.sum(column == 0))


def test_labels_without_names_have_numbers():
    counts = [(10, 30), (20, 20)]
    by_number = SigmoidCrossEntropyConfig(positive_weights={"1": 4.0}).for_training([], lambda: counts)
    assert by_number.factors == [1.0, 4.0]
    assert SigmoidCrossEntropyConfig(positive_weights="balanced").for_training([], lambda: counts).factors == [3.0, 1.0]


@pytest.mark.parametrize(("counts", "said"), [((0, 9), "no training example has"), ((9, 0), "every training example")])
def test_what_can_not_be_balanced(counts, said):
    with pytest.raises(ConfigError, match=f"{said}.* the label bee; leave its column out, or give weights by name"):
        SigmoidCrossEntropyConfig(positive_weights="balanced").for_training(["ant", "bee"], lambda: [(3, 4), counts])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (r"loss.positive_weights={digit\ 33:2}", "no such label; did you mean digit 3"),
        ("loss.positive_weights=[1,2]", r"\[1,2\]: must be balanced, or a mapping from labels to weights"),
        ("loss.positive_weights=balancd", "must be balanced, or a mapping"),
        (r"loss.positive_weights={digit\ 3:0}", "each with a weight above 0; for example"),
        ("loss.positive_weights={}", "must name labels"),
    ],
)
def test_weights_that_are_refused(compose, given, said):
    with pytest.raises(ConfigError, match=said):
        weights_of(compose, given)


@pytest.mark.slow
def test_weights_are_told_and_change_what_is_learned(compose, tmp_path, capsys):
    given = (*TASK, *SMALL, "train.steps=2", "eval.every=2", f"run.dir={tmp_path}")
    run(compose(*given))
    run(compose(*given, "run.name=two", "loss.positive_weights=balanced"))
    assert "loss.positive_weights\n" in capsys.readouterr().out
    plain, weighted = (records_of(tmp_path / name, "train") for name in ("one", "two"))
    assert weighted[-1]["loss"] > 1.2 * plain[-1]["loss"], "rare labels count more"


# ---- thresholds ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory, registered):
    folder = tmp_path_factory.mktemp("labels")
    config = compose(
        *TASK, *SMALL, "train.steps=40", "eval.every=20", "data.val_fraction=0.3", f"run.dir={folder / 'runs'}"
    )
    run(config)
    return config


@pytest.mark.slow
def test_thresholds_are_those_of_the_validation_images(trained):
    """With the highest F1 there; the file predictions say the labels that reach them."""
    loaded = accumtrain.load_run("one", run_dir=trained.run.dir)
    result = loaded.evaluate()
    thresholds = json_of(Path(result["checkpoint"]).parent, "manifest")["answers"]["thresholds"]
    val = open_data(trained.data, trained.run.seed, "labels").val
    images, labels = (part.numpy() for part in val.read(tf.range(val.size, dtype=tf.int64)))
    found = loaded.predict(images)
    for place, threshold in enumerate(thresholds):
        assert threshold == pytest.approx(scores.best_threshold(labels[:, place], found.answers[:, place]), rel=1e-6)
    said = found.answers >= np.asarray(thresholds, np.float32)
    assert [record["labels"] for record in found.records] == [
        [name for name, own in zip(canvases.LABELS, row, strict=True) if own] for row in said
    ]
    assert {each["name"]: each["threshold"] for each in result["labels"]} == dict(
        zip(canvases.LABELS, thresholds, strict=True)
    )


def test_without_thresholds_a_label_is_said_from_a_half_on():
    """As before the first evaluation."""
    trained_on = TrainedOn(accumtrain.Arrays((3,)), "labels", ["a", "b"])
    answer = LabelAnswer(accumtrain.Config(), trained_on, {})
    answers = answer.tell(np.array([[0.5, 0.49], [0.1, 0.2]], np.float32))
    assert [record["labels"] for record in answers.records] == [["a"], []]
    assert [row[0] for row in answers.rows] == ["a", ""]
    assert [row[0] for row in answers.shown] == ["a", "none"]
    assert answers.summary == {"labels": {"a": 1}}


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("metrics", "best"), [(["f1"], "f1"), (["map"], "map"), (["f1", "map"], "f1"), ([], "loss")])
def test_what_is_chosen_is_measured_and_the_first_decides(compose, tmp_path, metrics, best):
    given = (*TASK, *SMALL, "train.steps=2", "eval.every=1", f"eval.metrics=[{','.join(metrics)}]")
    summary = run(compose(*given, f"run.dir={tmp_path}"))
    assert summary["test"].keys() == {"loss", *metrics}
    assert summary["best_by"]["metric"] == best


@pytest.mark.slow
def test_a_monitor(compose, tmp_path):
    given = (*TASK, *SMALL, "train.steps=6", "eval.every=2", "train.monitor=f1", f"run.dir={tmp_path}")
    summary = run(compose(*given))
    assert summary["best_by"] == {"metric": "f1", "higher_is_better": True}
    assert summary["best"]["f1"] == max(record["f1"] for record in records_of(tmp_path / "one", "test"))


@pytest.mark.slow
def test_metrics_of_your_own(compose, tmp_path, registered):
    """A mean over examples, which updates have, too; and one of the whole split."""

    def all_right(labels, logits):
        wrong = ~tf.math.is_nan(labels) & ((logits > 0) != (labels == 1))
        return tf.cast(~tf.reduce_any(wrong, axis=-1), logits.dtype)

    def least_known(labels, outputs):
        assert (type(labels), type(outputs)) == (np.ndarray, np.ndarray)
        return np.mean(~np.isnan(labels), axis=0).min()

    register_metric("all_right", all_right, targets="labels")
    register_metric("least_known", least_known, targets="labels", whole_split=True)
    chosen = "eval.metrics=[all_right,least_known]"
    summary = run(compose(*TASK, *SMALL, "train.steps=1", "eval.every=1", chosen, f"run.dir={tmp_path}"))
    labels = open_objective(compose(*TASK)).stored.test.known_labels
    assert summary["test"]["least_known"] == pytest.approx(np.mean(~np.isnan(labels), axis=0).min())
    assert summary["train"].keys() == {"loss", "all_right"}
    assert 0 <= summary["test"]["all_right"] < 1


@pytest.mark.slow
def test_a_metric_of_the_whole_split_of_classes(compose, tmp_path, registered):
    """On data=digits: the accuracy of the worst class."""

    def worst(labels, logits):
        right = logits.argmax(axis=1) == labels
        return min(right[labels == each].mean() for each in np.unique(labels))

    register_metric("worst", worst, whole_split=True)
    given = ("data=digits", *SMALL, "train.steps=20", "eval.every=20", "eval.metrics=[worst,accuracy]")
    config = compose(*given, f"run.dir={tmp_path}")
    summary = run(config)
    assert summary["best_by"] == {"metric": "worst", "higher_is_better": True}
    result = run(replace(config, job="evaluate"))
    assert result["test"]["worst"] == summary["test"]["worst"] == min(each["accuracy"] for each in result["classes"])
    assert result["test"]["worst"] < result["test"]["accuracy"]


@pytest.mark.parametrize(
    ("given", "said", "remedy"),
    [
        ("loss=cross_entropy", "takes classes, .* are labels; choose loss=sigmoid_cross_entropy", ()),
        ("loss=squared_error", "takes numbers, .* choose loss=sigmoid_cross", ("loss=sigmoid_cross_entropy",)),
        ("eval.metrics=[accuracy]", "eval.metrics: accuracy takes classes, .* from map, f1", ("eval.metrics=[f1]",)),
        ("eval.metrics=[map,r2]", "r2 takes numbers, .* choose from map, f1", ("eval.metrics=[map]",)),
        ("train.monitor=accuracy", "train.monitor: accuracy takes .* choose from map, f1", ("train.monitor=f1",)),
        ("data.sampling=balanced", "does not go with task=multilabel, .* leave it out", ()),
        ("data=digits", "data=digits has no labels for it; choose task=classify or ", ("task=classify", "data=digits")),
        ("task=classify", "has no classes for it; choose task=multilabel or data=digits ", ("task=multilabel",)),
    ],
)
def test_what_is_refused_and_the_remedy(compose, given, said, remedy):
    with pytest.raises(ConfigError, match=said):
        compose(*TASK, given)
    compose(*TASK, *remedy)


# ---- a guess ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["null", "balanced"])
def test_the_loss_of_a_guess(compose, weights):
    """Of each label's share in training; the other splits have the same answer, without weights."""
    config = compose(*TASK, "data.val_fraction=0.25", f"loss.positive_weights={weights}")
    objective = open_objective(config)
    data = objective.stored
    train = data.train.known_labels
    have, lack = np.sum(train == 1, axis=0), np.sum(train == 0, axis=0)
    factor = lack / have if weights == "balanced" else np.ones(len(have))
    p = factor * have / (factor * have + lack)
    expected = {"train": np.mean(-(factor * have * np.log(p) + lack * np.log(1 - p)) / len(train))}
    for name in ("val", "test"):
        labels = data.splits[name].known_labels
        entropy = np.where(labels == 1, -np.log(p), np.where(labels == 0, -np.log(1 - p), 0))
        expected[name] = entropy.mean()
    assert objective.guess() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps", "told"), [("1e-9", 20, True), ("0.005", 40, False)])
def test_a_model_that_has_learned_nothing_says_so(compose, tmp_path, capsys, rate, steps, told):
    given = (*TASK, *SMALL, f"optim.lr={rate}", f"train.steps={steps}", f"eval.every={steps}")
    run(compose(*given, f"run.dir={tmp_path}"))
    assert ("is no better than a guess" in " ".join(capsys.readouterr().err.split())) == told


@pytest.mark.slow
def test_mixed_images_have_mixed_labels(compose, tmp_path):
    """data.mixup goes with labels, also with unknown ones."""
    summary = run(compose(*TASK, *SMALL, "data.mixup=0.4", "train.steps=4", "eval.every=4", f"run.dir={tmp_path}"))
    assert math.isfinite(summary["train"]["loss"])


@pytest.mark.slow
def test_a_run_says_that_no_state_is_the_best(compose, tmp_path, capsys):
    """No validation image has a label, so map has no value there."""
    images, labels = np.full([8, 8, 8, 3], 255, np.uint8), np.tile(np.eye(2, dtype=np.int64), [4, 1])
    np.savez(tmp_path / "few.npz", images=images, labels=labels, val_images=images, val_labels=0 * labels)
    small = ("data=npz", f"data.path={tmp_path / 'few.npz'}", "data.image_size=16", "model=lenet5", "batch_size=4")
    for monitor, told in (("null", True), ("loss", False)):
        name = (f"run.dir={tmp_path}", f"run.name={monitor}", f"train.monitor={monitor}", "train.steps=2")
        run(compose("task=multilabel", *small, *name))
        printed = " ".join(capsys.readouterr().err.split())
        assert ("no state is the best, as map can't be computed from the val examples" in printed) == told
