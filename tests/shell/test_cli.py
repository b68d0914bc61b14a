"""The command line from outside: exit codes, sweeps, and answers without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hydra.errors import MissingConfigException

from accumtrain import __version__
from accumtrain.config.conf_dir import CONF_DIR
from accumtrain.errors import AccumtrainError, ConfigError, DataError, DivergedError, Preempted
from accumtrain.runs.folder import CHECKPOINTS, folder_of
from accumtrain.shell import sweep
from accumtrain.shell.compose import call_hydra
from accumtrain.shell.hydra_errors import explain

WITHOUT_TENSORFLOW = """
import sys
from accumtrain.shell.main import main
try:
    main()
finally:
    heavy = {"tensorflow", "keras", "numpy", "matplotlib"} & set(sys.modules)
    assert not heavy, heavy
"""


def outside(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], "revnet38"),
        (["--help", "optim=adam"], "optim.beta1=0.9"),
        (["--cfg", "job"], "batch_size: 64"),
        (["--info", "defaults"], "model/revnet38"),
        (["--version"], f"accumtrain {__version__}"),
    ],
)
def test_answers_need_no_tensorflow(arguments, shown):
    answer = outside(*arguments)
    assert answer.returncode == 0
    assert shown in answer.stdout
    assert answer.stderr == ""


def test_completion_by_tab_needs_no_tensorflow():
    line = "accumtrain model=revnet1"
    answer = outside("--shell-completion", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert answer.stdout.split() == ["model=revnet104", "model=revnet110", "model=revnet164"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("job=p", "job=plan job=predict"),
        ("jo", "job="),
        ("device=cpu batch", "batch_size="),
        ("data.randa", "data.randaugment="),
        ("model.memory=re", "model.memory=recompute model.memory=reverse"),
        ("run.resume=", "run.resume=false run.resume=force run.resume=true"),
        ("train optim=keras optim.name=Lion optim.args.beta_1=0.9 eval.", "eval.every="),
        (
            "optim=ada",
            "optim=adafactor " + " ".join(f"optim=adafactor_{n}" for n in ("bojone", "huggingface", "optax", "paper")),
        ),
        ("no_such_key=1 batch", ""),
        ("nonsense batch", ""),
        ("--help data.mix", "data.mixup="),
    ],
)
def test_completion_by_tab(line, offered, command, monkeypatch):
    monkeypatch.setenv("COMP_LINE", f"accumtrain {line}")
    answer = command("--shell-completion", "query=bash")
    assert (answer.code, answer.err) == (0, "")
    assert [each for each in answer.out.split() if not each.startswith("optim=adam")] == offered.split()


def test_the_name_of_a_job_alone(command, fake_job):
    seen = fake_job(lambda config: None)
    assert command("train", "batch_size=32").code == 0
    assert command("job=train", "batch_size=32").code == 0
    assert seen[0] == seen[1]


def test_a_whole_float_is_an_integer(command, fake_job):
    seen = fake_job(lambda config: None)
    assert command("batch_size=1e2", "accum.steps=5.0", "model.units=[1.0,2,1]", "eval.every=7.0").code == 0
    (config,) = seen
    found = [config.batch_size, config.accum.steps, *config.model.units, config.eval.every]
    assert found == [100, 5, 1, 2, 1, 7]
    assert all(type(each) is int for each in found)


def test_a_mapping_takes_keys_at_any_depth(command, fake_job):
    seen = fake_job(lambda config: None)
    assert command("model=keras", "model.name=X", "model.args.a.b=1", "model.args.a.c=x").code == 0
    assert seen[0].model.args == {"a": {"b": 1, "c": "x"}}


def test_mistake_from_outside_needs_no_tensorflow():
    answer = outside("batch_size=100", "accum.steps=8")
    assert answer.returncode == 2
    assert answer.stderr == "error: batch_size=100 does not divide by accum.steps=8 x 1 replica; nearest: 96, 104\n"


def test_help_shows_every_choice(command, tmp_path):
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "tiny.yaml").write_text("")
    answer = command("--help", "--config-dir", "own")
    assert answer.code == 0
    for file in CONF_DIR.glob("*/*.yaml"):
        assert f"\n  {file.parent.name} " in answer.out
        assert file.stem in answer.out
    assert "tiny" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 110


def test_unknown_option(command):
    answer = command("--verbose")
    assert answer.code == 2
    assert "unrecognized arguments: --verbose" in answer.err


def test_part_of_the_configuration(command):
    assert command("--cfg", "job", "--package", "eval").out == "# @package eval\nevery: epoch\n"
    answer = command("--cfg", "job", "--package", "nothing")
    assert answer.code == 2
    assert "error: --package nothing: no such group" in answer.err


def test_job_gets_the_checked_configuration(command, fake_job, tmp_path):
    seen = fake_job(lambda config: None)
    assert command("batch_size=32", "model=lenet5").code == 0
    (config,) = seen
    assert (config.batch_size, config.model.label, config.run.name) == (32, "lenet5", "lenet5-digits-batch_size32")
    assert list(tmp_path.iterdir()) == [], "files are the job's matter, Hydra writes none"


@pytest.mark.parametrize("error", AccumtrainError.__subclasses__())
def test_errors_of_a_job_have_their_exit_code(error, command, fake_job):
    def job(config):
        raise error("what to do")

    fake_job(job)
    answer = command()
    assert answer.code == error.exit_code
    assert answer.out + answer.err == ("what to do\n" if error is Preempted else "error: what to do\n")


def test_what_a_job_has_found_is_written_even_if_it_is_stopped(command, fake_job, tmp_path):
    def job(config):
        if config.batch_size == 32:
            raise Preempted("saved", {"step": 3})
        return {"step": 7}

    fake_job(job)
    assert command("batch_size=32", "run.name=one").code == 75
    assert command("batch_size=64", "run.name=two").code == 0
    found = [json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("one", "two")]
    assert found == [{"step": 3}, {"step": 7}]


def test_a_bug_shows_where_it_is(command, fake_job):
    fake_job(lambda config: config.no_such_thing)
    answer = command()
    assert answer.code == 1
    assert "AttributeError" in answer.err
    assert answer.err.endswith("please report it with the lines above\n")


def test_interrupt_before_there_is_a_state(command, fake_job):
    def job(config):
        raise KeyboardInterrupt

    fake_job(job)
    answer = command()
    assert answer.code == 130
    assert answer.err == "error: interrupted before there was anything to save\n"


@pytest.mark.parametrize("variable", ["ACCUMTRAIN_TRACEBACK", "HYDRA_FULL_ERROR"])
def test_traceback_on_request(variable):
    answer = outside("batch_size=0", **{variable: "1"})
    assert answer.returncode == 2
    assert "Traceback" in answer.stderr
    assert "ConfigError: batch_size=0" in answer.stderr


def test_own_config_dir(command, fake_job, tmp_path):
    seen = fake_job(lambda config: None)
    own = tmp_path / "own" / "model"
    own.mkdir(parents=True)
    (own / "tiny.yaml").write_text("defaults: [revnet38]\nunits: [1, 1, 1]\n")
    assert command("--config-dir", "own", "model=tiny").code == 0
    assert seen[0].model.label == "revnet14"


def test_own_config_that_is_no_yaml(command, tmp_path):
    own = tmp_path / "own" / "model"
    own.mkdir(parents=True)
    (own / "tiny.yaml").write_text("units: [1, 1\n")
    answer = command("--config-dir", "own", "model=tiny")
    assert answer.code == 2
    assert "tiny.yaml" in answer.err
    assert "Traceback" not in answer.err


def summary(accuracy: float | None, loss: float = 0.5) -> dict[str, Any]:
    return {
        "status": "completed",
        "step": 7,
        "epoch": 1.5,
        "test": {"accuracy": accuracy, "loss": loss},
        "best": {"accuracy": accuracy, "loss": loss},
        "examples_per_second": 1234.5,
        "seconds": 61.0,
    }


def checkpoint(config) -> None:
    """Leaves what says that the run is trained."""
    file = folder_of(config) / CHECKPOINTS / "last" / "ckpt-1.index"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def rows_of(out: str) -> list[list[str]]:
    """The rows of the table that closes a sweep."""
    lines = out[out.index("best first") :].splitlines()[2:]
    return [line.split() for line in lines if not line.endswith(" for a browser")]


def test_sweep_ranks_its_runs(command, fake_job, tmp_path):
    accuracies = {32: 0.8, 64: 0.95, 128: 0.8}
    seen = fake_job(lambda config: summary(accuracies[config.batch_size], config.batch_size))
    answer = command("-m", "batch_size=32,128,64", "train.epochs=2")
    assert answer.code == 0
    assert [config.run.name for config in seen] == [
        f"revnet38-digits-batch_size{size}-epochs2" for size in (32, 128, 64)
    ]
    assert rows_of(answer.out) == [
        ["64", "completed", "7", "1.5", *(["0.9500", "64.0000"] * 2), "1,234", "1:01"],
        ["32", "completed", "7", "1.5", *(["0.8000", "32.0000"] * 2), "1,234", "1:01"],
        ["128", "completed", "7", "1.5", *(["0.8000", "128.0000"] * 2), "1,234", "1:01"],
    ]
    rows = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert [row["summary"]["test"]["accuracy"] for row in rows] == [0.95, 0.8, 0.8]
    assert rows[0]["path"] == "runs/revnet38-digits-batch_size64-epochs2"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["runs"], "nothing of Hydra's"
    assert "batch_size64" in (tmp_path / "runs" / "report.html").read_text()


def test_sweep_of_benchmarks_ranks_them_by_speed(command, fake_job):
    def measure(config):
        return {
            "images_per_second": {"median": 10.0 * config.batch_size},
            "memory": {"tensor_peak_bytes": 3 * 2**20, "workspace_bytes": 2**20, "rss_peak_bytes": 2**30},
            "share_of_matmul": None,
            "seconds_to_first_update": {"total": 14.2},
        }

    fake_job(measure, "bench")
    answer = command("-m", "job=bench", "batch_size=32,64")
    assert answer.code == 0
    assert rows_of(answer.out) == [
        ["64", "completed", "640", "3.0", "MB", "1.0", "MB", "1.0", "GB", "-", "14.2", "s"],
        ["32", "completed", "320", "3.0", "MB", "1.0", "MB", "1.0", "GB", "-", "14.2", "s"],
    ]


def test_sweep_goes_on_after_failures(command, fake_job):
    def job(config):
        if config.run.seed == 0:
            raise DataError("no data")
        if config.run.seed == 1:
            raise ZeroDivisionError
        if config.run.seed == 2:
            raise DivergedError("the loss is no number", summary(accuracy=None))
        return summary(accuracy=0.9)

    seen = fake_job(job)
    answer = command("-m", "run.seed=0,1,2,3")
    assert len(seen) == 4
    assert answer.code == DataError.exit_code, "that of the first failure"
    assert [row[:2] for row in rows_of(answer.out)] == [
        ["3", "completed"],
        ["2", "DivergedError"],
        ["0", "DataError"],
        ["1", "bug"],
    ]


@pytest.mark.parametrize(("stop", "code"), [(Preempted("saved"), 75), (KeyboardInterrupt(), 130)])
def test_sweep_ends_when_stopped(stop, code, command, fake_job):
    def job(config):
        if config.batch_size == 64:
            raise stop
        return summary(accuracy=0.9)

    seen = fake_job(job)
    answer = command("-m", "batch_size=32,64,128")
    assert answer.code == code
    assert len(seen) == 2
    assert len(rows_of(answer.out)) == 2


def test_sweep_over_jobs_may_share_a_run(command, fake_job, monkeypatch):
    def train(config):
        checkpoint(config)
        return summary(accuracy=0.9)

    seen = fake_job(train)
    monkeypatch.setitem(sys.modules, "accumtrain.jobs.evaluate", sys.modules["accumtrain.jobs.train"])
    assert command("-m", "job=train,evaluate", "run.name=one").code == 0
    assert [config.job for config in seen] == ["train", "evaluate"]


def test_refused_run_in_a_sweep_has_no_numbers(command, fake_job):
    accuracies = iter([0.9, 0.8])

    def job(config):
        if config.batch_size == 64:
            raise ConfigError("not this one")
        return summary(next(accuracies))

    fake_job(job)
    answer = command("-m", "batch_size=32,64")
    assert rows_of(answer.out)[1] == ["64", "ConfigError", *("-" * 8)]


def test_a_sweeper_gets_the_test_accuracy_of_each_job(command, fake_job, monkeypatch):
    def job(config):
        if config.batch_size == 64:
            raise DataError("no data")
        return summary(accuracy=0.9)

    returned = []

    def call_and_note(options, task, **more):
        call_hydra(options, lambda composed: returned.append(task(composed)), **more)

    monkeypatch.setattr(sweep, "call_hydra", call_and_note)
    fake_job(job)
    command("-m", "batch_size=32,64")
    assert returned == [0.9, 0.0]


def test_a_corner_of_a_grid_that_is_refused_keeps_the_others_from_nothing(command, fake_job):
    seen = fake_job(lambda config: summary(accuracy=0.9))
    answer = command("-m", "batch_size=32,36", "accum.steps=4,8")
    assert answer.code == ConfigError.exit_code
    assert [(config.batch_size, config.accum.steps) for config in seen] == [(32, 4), (32, 8), (36, 4)]
    assert answer.err.startswith("warning: run 4 of the sweep will be refused: batch_size=36 does not divide by")
    assert [row[2] for row in rows_of(answer.out)] == ["completed", "completed", "completed", "ConfigError"]


def test_launcher_that_is_not_installed():
    error = MissingConfigException("no", missing_cfg_file="hydra/launcher/joblib", options=["basic"])
    assert str(explain(error)) == "hydra/launcher=joblib: is not installed; pip install 'accumtrain[joblib]'"
