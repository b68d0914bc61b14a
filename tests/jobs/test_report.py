"""job=report over runs on disk."""

import json

import pytest

from accumtrain.errors import ConfigError
from accumtrain.jobs.dispatch import run

SUMMARY = {
    "status": "completed",
    "step": 4,
    "test": {"loss": 0.5, "accuracy": 0.75},
    "examples_per_second": 100.0,
    "seconds": 3.0,
    "batch_size": 8,
    "micro_batch_size": 4,
    "accum_steps": 2,
    "replicas": 1,
    "memory": {"tensor_peak_bytes": 3 * 2**20, "tensor_static_bytes": 2**20, "rss_peak_bytes": 2**30},
}


@pytest.fixture
def runs(tmp_path):
    for name, accuracy in (("good", 0.9), ("poor", 0.3)):
        (tmp_path / name).mkdir()
        summary = SUMMARY | {"test": {"loss": 0.5, "accuracy": accuracy}}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        records = [
            {"step": s, "split": split, "loss": 1 / s, "accuracy": accuracy}
            for s in (1, 2)
            for split in ("train", "test")
        ]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def test_all_runs_best_first(compose, runs, capsys):
    result = run(compose("job=report", f"run.dir={runs}"))
    assert list(result["runs"]) == ["good", "poor"]
    out = capsys.readouterr().out
    assert out.index("good") < out.index("poor")
    assert "8 = 4 x 2 x 1" in out
    assert "2.0 MB" in out
    assert (runs / "report.png").read_bytes().startswith(b"\x89PNG")


def test_chosen_runs_only(compose, runs):
    assert list(run(compose("job=report", f"run.dir={runs}", "report.runs=[poor]"))["runs"]) == ["poor"]


def test_a_run_that_is_not_there(compose, runs, tmp_path_factory):
    with pytest.raises(ConfigError, match=r"report.runs: .*missing holds no run"):
        run(compose("job=report", f"run.dir={runs}", "report.runs=[missing]"))
    with pytest.raises(ConfigError, match="no finished run"):
        run(compose("job=report", f"run.dir={tmp_path_factory.mktemp('empty')}"))
