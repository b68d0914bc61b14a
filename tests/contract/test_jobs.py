"""Every job: where it writes and when, what it says of itself in its entry, and how a sweep ranks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from accumtrain.cli.sweep.table import JobOutcome
from accumtrain.config.jobs import JOBS, cell
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError, DataError, DivergedError
from accumtrain.measure import bench, memory, plan
from accumtrain.measure.probe import ProbeResult
from accumtrain.runs.files import to_json_value
from accumtrain.runs.folder import job_folder, result_file
from tests.begun import leave_checkpoint
from tests.contract.examples import example_of

SMALL = (
    *("model=lenet5", "data=synthetic", "data.image_size=8", "data.train_examples=16", "data.test_examples=8"),
    *("optim=sgd", "batch_size=8", "accum.steps=2", "run.name=one"),
)
NAMES = JOBS.names
RANKED = [job.name for job in JOBS if job.ranking]
SWEPT = [job.name for job in JOBS if job.scope != "runs"]  # several of those that do would write one file
Fake = Callable[..., list[Any]]


@pytest.fixture
def fake(fake_job: Callable[..., list[Any]]) -> Fake:
    return lambda name, function: fake_job(function, name)


def trained_with(seeds: Iterable[int], compose: Callable[..., Any], tmp_path: Path) -> None:
    for seed in seeds:
        one = (f"run.seed={seed}", f"run.dir={tmp_path}/runs", f"run.name=revnet38-digits-seed{seed}")
        leave_checkpoint(compose(*one))


def at(key: str, value: Any) -> dict[str, Any]:
    """A result with a value at a dotted key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def order(tmp_path: Path, key: str = "run.seed") -> list[str]:
    """The values of a swept key, best first."""
    records = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    return [dict(each.split("=") for each in record["overrides"])[key] for record in records]


# --- a small one of each --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(compose: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Configuration and result of each job, made one after the other in one folder; those that need a run come last."""
    folder = tmp_path_factory.mktemp("jobs")
    results = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "INPUT_SECONDS", 0.1)
        patch.setattr(bench, "matmul_flops_per_second", lambda dtype, runtime: 1e12)
        patch.setattr(plan, "probe_smallest", lambda config, note="": [])
        sizes = {"peak_bytes": 2**20, "rss_bytes": 2**20}

        def probe(config, size, note=""):
            return ProbeResult(config.model.memory, size, True, 1, 1, **sizes)

        for module in (plan, memory):
            patch.setattr(module, "probe", probe)
        for job in sorted(JOBS, key=lambda job: job.scope in ("trained", "runs")):
            config = compose(f"job={job.name}", f"run.dir={folder}", *SMALL, *example_of("job", job.name))
            results[job.name] = config, run(config)
    return results


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_written_and_returned(name, done):
    config, result = done[name]
    assert json.loads(result_file(config).read_text()) == json.loads(json.dumps(to_json_value(result)))
    assert result_file(config) == job_folder(config) / JOBS[name].file


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_a_sweep_finds_its_columns(name, done):
    outcome = JobOutcome([], name, str(result_file(done[name][0])), None, 0)
    for title, (key, form) in JOBS[name].columns.items():
        assert cell(outcome.value(key), form) != "-", f"{title}: {JOBS[name].file} has nothing at {key}"
    assert all(isinstance(outcome.value(key), float) for key, _ in JOBS[name].ranking)


# --- the folder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_folder_is_there_before_any_work(name, command, fake, compose, tmp_path):
    config = compose(f"job={name}", "run.dir=new/runs", "run.name=one")
    if JOBS[name].scope == "trained":
        leave_checkpoint(config)
    seen = fake(name, lambda config: None if job_folder(config).is_dir() else {"no": "folder"})
    before = set(tmp_path.rglob("*"))
    assert command(f"job={name}", "run.dir=new/runs", "run.name=one", *example_of("job", name)).code == 0
    assert len(seen) == 1
    assert not result_file(config).exists(), "a job without a result writes none"
    assert set(tmp_path.rglob("*")) == before, "what stays empty is removed, and nothing else"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("run_dir", ["file", "file/runs"])
def test_a_folder_that_cannot_be_made_is_a_mistake(name, run_dir, command, fake, tmp_path):
    (tmp_path / "file").write_text("mine")
    seen = fake(name, lambda config: {})
    answer = command(f"job={name}", f"run.dir={run_dir}", "run.name=one", *example_of("job", name))
    assert answer.code == ConfigError.exit_code
    assert answer.err.startswith(f"error: the run's folder {run_dir}")
    assert answer.err.count("\n") == 1
    assert seen == []
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", [job.name for job in JOBS if job.scope == "trained"])
@pytest.mark.parametrize("there", [[], ["runs"], ["runs", "runs/one"]], ids=str)
def test_a_job_without_the_run_it_needs_leaves_nothing_behind(name, there, command, fake, tmp_path):
    for folder in there:
        (tmp_path / folder).mkdir()
    seen = fake(name, lambda config: {})
    answer = command(f"job={name}", "run.name=one", *example_of("job", name))
    assert answer.code == CheckpointError.exit_code
    assert "no checkpoint in runs/one/checkpoints: train first, with the same run.name" in answer.err
    assert seen == []
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == there


@pytest.mark.parametrize("name", [job.name for job in JOBS if job.scope == "trained"])
@pytest.mark.parametrize("data", [("data.path=new.csv",), ("data=table", "data.text_column=text"), ("data=folder",)])
def test_that_there_is_no_run_is_said_before_anything_of_keys_of_data(name, data, command, fake, tmp_path):
    """These would be keys of another kind, or lack one, without the values of a run."""
    (tmp_path / "runs" / "ones" / "checkpoints" / "step-4").mkdir(parents=True)
    answer = command(f"job={name}", "run.name=one", *data, *example_of("job", name))
    assert answer.code == CheckpointError.exit_code
    assert answer.err == (
        "error: no checkpoint in runs/one/checkpoints: did you mean run.name=ones? Or train first, with the same "
        "run.name\n"
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_a_job_found_before_it_failed_is_written(name, command, fake, compose, tmp_path):
    def fail(config):
        raise DivergedError("not finite", {"status": "diverged"})

    leave_checkpoint(compose("run.name=one", f"run.dir={tmp_path}/runs"))
    fake(name, fail)
    assert command(f"job={name}", "run.name=one", *example_of("job", name)).code == DivergedError.exit_code
    (file,) = tmp_path.rglob(JOBS[name].file)
    assert json.loads(file.read_text()) == {"status": "diverged"}


# --- sweeps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RANKED)
def test_a_sweep_ranks_by_the_row(name, command, fake, compose, tmp_path):
    for key, sign in JOBS[name].ranking:
        values = {0: 0.4, 1: 0.2, 2: 0.8}
        trained_with(values, compose, tmp_path)
        fake(name, lambda config, key=key, values=values: at(key, values[config.run.seed]))
        assert command("-m", f"job={name}", "run.seed=0,1,2").code == 0
        assert order(tmp_path) == (["2", "0", "1"] if sign < 0 else ["1", "0", "2"])


def test_a_sweep_of_evaluations_ranks_by_what_they_found(command, fake, tmp_path):
    def train(config):
        leave_checkpoint(config)
        return at("test.accuracy", {0: 0.9, 1: 0.1}[config.run.seed])

    fake("train", train)
    assert command("-m", "run.seed=0,1").code == 0
    assert order(tmp_path) == ["0", "1"]
    fake("evaluate", lambda config: at("test.accuracy", {0: 0.1, 1: 0.9}[config.run.seed]))
    assert command("-m", "job=evaluate", "run.seed=0,1").code == 0
    assert order(tmp_path) == ["1", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
def test_a_second_sweep_reads_nothing_of_the_first(name, command, fake, compose, tmp_path):
    trained_with((0, 1), compose, tmp_path)
    fake(name, lambda config: {"step": config.run.seed})
    arguments = (f"job={name}", "run.seed=0,1", *example_of("job", name))
    assert command("-m", *arguments).code == 0

    def second(config):
        if config.run.seed == 0:
            raise DataError("no data")
        return {"step": 2}

    fake(name, second)
    assert command("-m", *arguments).code == DataError.exit_code
    records = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert [record["summary"] for record in records] == [{"step": 2}, {}]
