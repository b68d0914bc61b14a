"""job=report over runs on disk."""

import itertools
import json
import math

import pytest

from accumtrain.config.read import to_mapping
from accumtrain.config.schema import Config
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.optim.config import OPTIMIZERS
from accumtrain.process import environment
from accumtrain.runs.config import RunConfig
from accumtrain.tasks.config import CrossEntropyConfig, HuberConfig, MaskedTokensConfig

SUMMARY = {
    "status": "completed", "step": 4, "test": {"loss": 0.5, "accuracy": 0.75},
    "examples_per_second": 100.0, "seconds": 3.0,
    "batch_size": 8, "micro_batch_size": 4, "accum_steps": 2, "replicas": 1,
    "memory": {"tensor_peak_bytes": 3 * 2**20, "tensor_static_bytes": 2**20, "rss_peak_bytes": 2**30},
}  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    for name, accuracy in (("good", 0.9), ("poor", 0.3)):
        (tmp_path / name).mkdir()
        summary = SUMMARY | {split: {"loss": 0.5, "accuracy": accuracy} for split in ("test", "best")}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        with (tmp_path / name / "metrics.jsonl").open("w") as file:
            for step, split in itertools.product((1, 2), ("train", "test")):
                record = {"step": step, "split": split, "loss": 1 / step, "accuracy": accuracy, "seconds": 1.0}
                file.write(json.dumps(record) + "\n")
    return tmp_path


@pytest.fixture
def report(compose, runs):
    return lambda *more: run(compose("job=report", f"run.dir={runs}", *more))


def test_tensorflow_is_not_imported(command, runs, monkeypatch):
    monkeypatch.setattr(environment, "prepare", lambda *_, **__: pytest.fail("it takes seconds"))
    assert command("job=report", f"run.dir={runs}").code == 0


def test_all_runs_best_first(report, runs, capsys):
    result = report()
    assert list(result["runs"]) == ["good", "poor"]
    out = capsys.readouterr().out
    assert out.index("good") < out.index("poor")
    assert "8 = 4 x 2 x 1" in out
    assert "2.0 MB" in out
    assert (runs / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "good" in (runs / "report.html").read_text()


def test_the_metric_that_ranks_has_a_column(report, runs, capsys):
    by = {"best_by": {"metric": "error", "higher_is_better": False}, "best": {"loss": 0.5, "error": 0.125}}
    (runs / "good" / "summary.json").write_text(json.dumps(SUMMARY | by))
    report("report.runs=[good]")
    out = capsys.readouterr().out
    assert "best error" in out
    assert "0.1250" in out


PHOTOS = {
    "data.classes": ["cat", "dog"],
    "data.train.examples": 80,
    "data.test.examples": 40,
    "data.test.files": "f00d",
}


def trained_on(data, **facts):
    return {"config": data, "summary": {"best_on": "test", "data": {**PHOTOS, **facts}}}


@pytest.mark.parametrize(
    ("of_good", "of_poor", "titles"),
    [
        (
            trained_on({"kind": "digits"}, **{"data.test.examples": 360}),
            trained_on({"kind": "folder", "path": "my/photos"}),
            ["digits, by accuracy on 360 test examples", "photos, by accuracy on 40 test examples"],
        ),
        (  # another content under the same name
            trained_on({"kind": "folder", "path": "photos"}),
            trained_on({"kind": "folder", "path": "else/photos"}, **{"data.test.files": "beef"}),
            ["photos, by accuracy on 40 test examples"] * 2,
        ),
        (  # more to train on, measured on the same images
            trained_on({"kind": "folder", "path": "photos"}, **{"data.train.files": "1"}),
            trained_on({"kind": "folder", "path": "else/photos"}, **{"data.train.files": "2"}),
            ["photos, by accuracy on 40 test examples"],
        ),
    ],
)
def test_runs_of_different_data_are_not_ranked_together(of_good, of_poor, titles, report, runs, capsys):
    for name, facts in (("good", of_good), ("poor", of_poor)):
        file = runs / name / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | facts["summary"]))
        values = to_mapping(Config(run=RunConfig(name=name))) | {"data": facts["config"]}
        (runs / name / "config.yaml").write_text(json.dumps(values))
    result = report()
    assert [ranked["title"] for ranked in result["ranked"]] == titles
    out = capsys.readouterr().out
    assert out.count("best first") == len(titles)
    assert ("are not ranked against each other" in out) == (len(titles) > 1)
    page = (runs / "report.html").read_text()
    assert page.count('"ranked_by":"best accuracy"') == len(titles)


def test_runs_of_different_metrics_are_not_ranked_together(report, runs):
    file = runs / "poor" / "summary.json"
    by_loss = {"best_by": {"metric": "loss", "higher_is_better": False}}
    file.write_text(json.dumps(json.loads(file.read_text()) | by_loss))
    assert [ranked["runs"] for ranked in report()["ranked"]] == [["good"], ["poor"]]


def test_runs_of_different_losses_are_not_ranked_by_them(report, runs):
    """Weights count in training alone."""
    by_loss = {"best_by": {"metric": "loss", "higher_is_better": False}}
    losses = {"good": HuberConfig(delta=2.0), "poor": HuberConfig()}
    for name, loss in losses.items():
        file = runs / name / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | by_loss))
        values = to_mapping(Config(run=RunConfig(name=name), loss=loss))
        (runs / name / "config.yaml").write_text(json.dumps(values))
    ranked = {ranked["title"].partition(" on ")[0]: ranked["runs"] for ranked in report()["ranked"]}
    assert ranked == {"digits, by loss huber delta=2": ["good"], "digits, by loss huber delta=1": ["poor"]}
    for name, loss in zip(losses, (CrossEntropyConfig(label_smoothing=0.1), CrossEntropyConfig()), strict=True):
        values = to_mapping(Config(run=RunConfig(name=name), loss=loss))
        (runs / name / "config.yaml").write_text(json.dumps(values))
    (ranked,) = report()["ranked"]
    assert ranked["title"].startswith("digits, by loss cross_entropy")


def test_runs_that_mask_other_shares_of_tokens_are_not_ranked_together(report, runs):
    for name, share in (("good", 0.15), ("poor", 0.3)):
        values = to_mapping(Config(run=RunConfig(name=name), task=MaskedTokensConfig(share=share)))
        (runs / name / "config.yaml").write_text(json.dumps(values))
    titles = [ranked["title"] for ranked in report()["ranked"]]
    assert titles == [
        f"digits, by accuracy task.share={share} task.masked=0.8 task.random=0.1" for share in (0.15, 0.3)
    ]


def test_a_terminal_of_80_columns_shows_results_and_the_keys_that_differ(report, runs, capsys, terminal):
    for name, kind in (("good", "adam"), ("poor", "sgd")):
        values = to_mapping(Config(run=RunConfig(name=name), optim=OPTIMIZERS[kind].config()))
        (runs / name / "config.yaml").write_text(json.dumps(values))
        (runs / name).rename(runs / f"lenet5-digits-optim_{kind}-e11e3a")
    report()
    lines = capsys.readouterr().out.splitlines()
    (end_of_row,) = (line for line in lines if "0.3000" in line)
    assert end_of_row.split()[:7] == ["optim_sgd-e11e3a", "0.3000", "0.5000", "0.3000", "3.0", "s", "sgd"]
    assert "names are shown without their common beginning, lenet5-digits-" in lines


def test_trials_are_no_runs(report, runs):
    (runs / "trials" / "bench-good").mkdir(parents=True)
    (runs / "trials" / "bench-good" / "summary.json").write_text(json.dumps(SUMMARY))
    assert list(report()["runs"]) == ["good", "poor"]


def test_a_damaged_configuration_is_named_and_not_compared(report, runs, capsys):
    (runs / "good" / "config.yaml").write_text("model: [")
    assert len(report()["runs"]) == 2
    assert "good is compared without its configuration" in capsys.readouterr().err


def test_chosen_runs_only(report):
    assert list(report("report.runs=[poor]")["runs"]) == ["poor"]


def test_a_run_that_is_not_there(report, tmp_path_factory):
    with pytest.raises(ConfigError, match=r"report.runs: .*missing holds no run"):
        report("report.runs=[missing]")
    with pytest.raises(ConfigError, match="no finished run"):
        report(f"run.dir={tmp_path_factory.mktemp('empty')}")


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY | {"best": {"loss": None, "accuracy": None}, "examples_per_second": None},
        SUMMARY | {"test": None, "best": None, "memory": {}},
        {"status": "completed", "step": 1},
    ],
)
def test_a_value_that_is_not_there_is_a_dash(summary, report, runs, capsys):
    (runs / "good" / "summary.json").write_text(json.dumps(summary))
    result = report()
    assert list(result["runs"]) == ["poor", "good"]
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("good"))
    assert "-" in row.split()


RECORD = {"step": 1, "split": "train", "seconds": 1.0, "loss": None}
DAMAGED = [
    ("summary.json", "{", "is damaged"),
    ("summary.json", "[]", "is damaged"),
    ("summary.json", '{"made": "elsewhere"}', "summary.json is damaged: status is missing: must be text; move it away"),
    ("summary.json", '{"status": "completed", "step": 1, "step": 2}', "it holds the key step twice"),
    *(
        ("summary.json", json.dumps(SUMMARY | {key: value}), f"summary.json is damaged: {message}; move it away")
        for key, value, message in (
            ("seconds", math.nan, "NaN is no number that JSON or a float holds"),
            ("seconds", -1, "seconds=-1.0: must be at least 0"),
            ("seconds", True, "seconds=true: must be a number"),
            ("examples_per_second", 10**309, f"examples_per_second=1{'0' * 199}...: must be a finite number"),
            ("examples_per_second", 10**400, f"1{'0' * 199}... is no number that a float holds"),
            ("best", {"loss": math.inf, "accuracy": 0.0}, "Infinity is no number that JSON or a float holds"),
            ("best", {"loss": "0.5"}, "best.loss=0.5: must be a number or null"),
            ("memory", "much", "memory=much: must be a mapping"),
            ("memory", {"tensor_peak_bytes": [1]}, "memory.tensor_peak_bytes=[1]: must be a whole number or null"),
            ("batch_size", [8], "batch_size=[8]: must be a whole number"),
            ("step", "4", "step=4: must be a whole number"),
            ("step", 2**63, f"step={2**63}: must be at least 0 and below 9223372036854775808"),
            ("skipped_windows", "none", "skipped_windows=none: must be a whole number"),
            ("best_on", "status", "best_on=status: no such choice; choose from val, test"),
            ("status", None, "status=null: must be text"),
        )
    ),
    ("metrics.jsonl", "no record\n", "line 1 is not a record of a run"),
    *(
        ("metrics.jsonl", json.dumps(RECORD | record) + "\n", f"line 1 is not a record of a run: {message}; repair")
        for record, message in (
            ({"step": "first"}, "step=first: must be a whole number"),
            ({"loss": 10**400}, f"1{'0' * 199}... is no number that a float holds"),
            ({"loss": [1.0]}, "loss=[1.0]: must be a number or null"),
            ({"loss": True}, "loss=true: must be a number or null"),
        )
    ),
    ("metrics.jsonl", "[" * 100_000 + "\n", "line 1 is not a record of a run: it is nested more than 50 deep"),
    ("metrics.jsonl", '{"step": 1}\n', "line 1 is not a record of a run: split is missing: must be text"),
]


@pytest.mark.parametrize(("file", "content", "message"), DAMAGED)
def test_a_damaged_run_is_named_and_left_out(file, content, message, report, runs, capsys):
    (runs / "good" / file).write_text(content)
    assert list(report()["runs"]) == ["poor"]
    warned = capsys.readouterr().err
    assert warned.startswith("warning: good is left out: ")
    assert message in warned


def test_nothing_that_can_be_read(report, runs):
    for name in ("good", "poor"):
        (runs / name / "summary.json").write_bytes(b"\xff\x00")
    with pytest.raises(CheckpointError, match="none of the 2 runs can be read"):
        report()


def test_values_that_are_no_numbers_are_not_drawn(report, runs):
    (runs / "good" / "metrics.jsonl").write_text(json.dumps(RECORD) + "\n")
    (runs / "good").rename(runs / "$\\good$")
    assert len(report()["runs"]) == 2


def test_a_link_is_replaced_not_followed(report, runs, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "precious"
    elsewhere.write_text("precious")
    (runs / "report.png").symlink_to(elsewhere)
    report()
    assert elsewhere.read_text() == "precious"
    assert (runs / "report.png").read_bytes().startswith(b"\x89PNG")
    assert not (runs / "report.png").is_symlink()
    assert not list(runs.glob(".report*"))
