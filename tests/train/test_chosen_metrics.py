"""eval.metrics: what is measured beside the loss, and what decides which state is the best."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from accumtrain.cli.sweep.table import begin_outcome
from accumtrain.config.check import check_config
from accumtrain.config.compiled import CompiledLossConfig, CompiledTaskConfig
from accumtrain.config.jobs import JOBS
from accumtrain.config.registries import TAKEN, register_metric
from accumtrain.config.schema import Config
from accumtrain.dispatch import run
from accumtrain.engine.losses import top5
from accumtrain.errors import ConfigError
from accumtrain.report.compare import read_ranked
from accumtrain.report.page import write_page
from accumtrain.tasks.config import METRICS
from accumtrain.train.config import BestBy
from accumtrain.train.metrics import evaluations_since_best
from tests.train.conftest import records_of


def error(labels, logits):
    return tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) != tf.cast(labels, tf.int32), logits.dtype)


@pytest.fixture(autouse=True, scope="module")
def registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METRICS, "entries", dict(METRICS.entries))
        register_metric("error", error, higher_is_better=False)
        yield


@pytest.fixture(scope="module")
def config(compose, tmp_path_factory, registered):
    folder = tmp_path_factory.mktemp("runs")
    return compose(
        *("model=lenet5", "optim=adam", "batch_size=64", "accum.steps=2", "train.steps=8", "eval.every=2"),
        *("eval.metrics=[error,top5]", f"run.dir={folder}", "run.name=one", "log.every=1", "data.val_fraction=0"),
    )


@pytest.fixture(scope="module")
def summary(config):
    return run(config)


def test_what_is_chosen_is_measured_and_the_first_decides(summary, config):
    measured = {"loss", "error", "top5"}
    assert summary["train"].keys() == summary["test"].keys() == measured
    assert summary["best_by"] == {"metric": "error", "higher_is_better": False}
    assert summary["best"].keys() == {"loss", "error"}
    records = records_of(Path(config.run.dir, "one"))
    assert [record for record in records if not measured <= record.keys()] == []
    assert summary["best"]["error"] == min(record["error"] for record in records if record["split"] == "test")


@pytest.mark.slow
def test_the_error_is_what_accuracy_lacks(summary, config):
    evaluation = replace(config, job="evaluate")
    found = run(evaluation)
    assert found["best_by"] == summary["best_by"]
    assert found["test"]["error"] == pytest.approx(summary["best"]["error"])
    other = run(replace(evaluation, eval=replace(config.eval, metrics=["accuracy"])))
    assert other["test"].keys() == {"loss", "accuracy"}
    assert other["test"]["accuracy"] == pytest.approx(1 - found["test"]["error"])
    assert other["best_by"] == {"metric": "accuracy", "higher_is_better": True}


@pytest.mark.slow
def test_another_choice_is_another_run_unless_forced(summary, config):
    another = replace(config, eval=replace(config.eval, metrics=["accuracy"]), train=replace(config.train, steps=10))
    with pytest.raises(ConfigError, match=r"eval.metrics=\[error,top5\] there and \[accuracy\] here.*run.resume=force"):
        run(another)
    forced = run(replace(another, run=replace(config.run, resume="force")))
    assert forced["best_by"] == {"metric": "accuracy", "higher_is_better": True}
    assert forced["best"]["accuracy"] == forced["test"]["accuracy"], "the best of those that were measured by it"
    again = run(replace(another, train=replace(config.train, steps=12)))
    assert again["best"]["accuracy"] == max(forced["test"]["accuracy"], again["test"]["accuracy"])


def by_error(error, loss=1.0):
    by = {"best_on": "test", "best_by": {"metric": "error", "higher_is_better": False}}
    return {"status": "completed", "step": 3, "epoch": 1.0, "best": {"loss": loss, "error": error}, **by}


def test_sweeps_and_reports_rank_in_its_direction(config, tmp_path):
    train = JOBS["train"]
    assert train.ranking_of(by_error(0.5)) == (("best.error", 1), ("best.loss", 1))
    assert train.ranking_of({}) == train.ranking
    for name, value in (("worse", 0.5), ("better", 0.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(by_error(value)))
    runs = read_ranked([tmp_path / "worse", tmp_path / "better"])
    assert [each.name for each in runs] == ["better", "worse"]
    assert {*train.columns_of([each.summary for each in runs])} >= {"best error", "test error", "best loss"}
    assert "best accuracy" not in train.columns_of([by_error(0.5)])
    assert {"best error", "best accuracy"} <= train.columns_of([by_error(0.5), {}]).keys()
    write_page(runs, tmp_path / "report.html")
    assert '"ranked_by":"best error"' in (tmp_path / "report.html").read_text()
    outcome = begin_outcome(replace(config, run=replace(config.run, dir=str(tmp_path), name="better")), [])
    assert outcome.objective == float("-inf"), "before it has ended, and where it fails"
    assert replace(outcome, ended_with=0, written_before=None).objective == -0.25


def chosen_by(monitor, metrics):
    """What decides the best state of a run that measures the accuracy."""
    config = Config()
    return BestBy.of(config.task, config.loss, metrics, monitor, ["accuracy"])


@pytest.mark.parametrize(
    ("chosen", "best", "of_loss"), [(["error"], 1, False), (["top5"], 2, False), ([], 0, True), (None, 2, False)]
)
def test_patience_counts_from_the_best_of_what_decides(chosen, best, of_loss):
    records = [
        {"loss": 0.5, "error": 0.9, "top5": 0.1, "accuracy": 0.1},
        {"loss": 0.9, "error": 0.2, "top5": 0.2, "accuracy": None},
        {"loss": 0.8, "error": 0.2001, "top5": 0.3, "accuracy": 0.3},
        {"loss": None, "error": None, "top5": 0.2, "accuracy": 0.2},
    ]
    by = chosen_by(None, chosen)
    assert (by.metric == "loss") is of_loss
    assert evaluations_since_best(records, by) == 3 - best
    assert evaluations_since_best(records, chosen_by(by.metric, ["top5"])) == 3 - best


@pytest.mark.parametrize(
    ("monitor", "min_delta", "since"),
    [
        ("accuracy", 0.0, 0),
        ("accuracy", 0.02, 2),
        ("accuracy", 0.2, 3),
        ("loss", 0.0, 1),
        ("loss", 0.15, 1),
        ("loss", 0.2, 3),
    ],
)
def test_patience_takes_a_small_gain_for_none(monitor, min_delta, since):
    pairs = [(0.5, 0.9), (0.6, 0.8), (0.61, 0.72), (0.615, 0.73)]
    records = [{"accuracy": accuracy, "loss": loss} for accuracy, loss in pairs]
    by = chosen_by(monitor, None)
    assert evaluations_since_best(records, by, min_delta) == since
    assert evaluations_since_best([], by, min_delta) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[accurracy]", "eval.metrics=accurracy: no such choice; did you mean accuracy"),
        ("[top5,error,top5]", r"eval.metrics=\[top5,error,top5\]: top5 is given twice"),
        ("top5", "eval.metrics=top5: must be a list"),
    ],
)
def test_what_is_refused(compose, given, message):
    with pytest.raises(ConfigError, match=message):
        compose(f"eval.metrics={given}")


def test_a_compiled_model_has_its_own(config):
    with pytest.raises(ConfigError, match=r"eval.metrics=\[error,top5\]: the model is compiled .* model.compile"):
        check_config(replace(config, task=CompiledTaskConfig(), loss=CompiledLossConfig()))


@pytest.mark.parametrize("name", ["loss", "grad_norm", "top5", "two words"])
def test_a_name_that_is_taken_is_refused(name):
    with pytest.raises(ValueError, match=name):
        register_metric(name, error)


def test_no_value_of_an_update_can_be_a_metric(compose, tmp_path):
    from accumtrain.engine.step import Step
    from accumtrain.tasks.objective import open_objective
    from accumtrain.train.build import build_window

    config = compose("model=lenet5", "precision=float16", "batch_size=8", "accum.steps=1", "optim=sgd", "optim.lr=0.1")
    strategy = tf.distribute.get_strategy()
    window = build_window(config, open_objective(config), 4, strategy)
    step = Step(window)
    batch = {"inputs": tf.zeros([8, 8, 8, 1]), "targets": tf.zeros([8], tf.int32)}
    step.accumulate(iter(tf.data.Dataset.from_tensors(batch).repeat()), 1)
    assert {*step.commit()} - {"accuracy"} <= TAKEN


def test_top5_of_fewer_classes_is_always_right():
    assert top5(tf.constant([0, 2]), tf.constant([[1.0, 2.0, 3.0]] * 2)).numpy().tolist() == [1.0, 1.0]
