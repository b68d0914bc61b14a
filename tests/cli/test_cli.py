"""The command line from outside: exit codes, sweeps, and answers without TensorFlow."""

import json

import pytest
from hydra.errors import MissingConfigException

from accumtrain import __version__
from accumtrain.cli.hydra_guard import explain_error
from accumtrain.config.keys import CONF_DIR
from accumtrain.errors import AccumtrainError, Preempted
from tests.programs import run_python, with_path

WITHOUT_TENSORFLOW = """
import sys
from accumtrain.cli.main import main
try:
    main()
finally:
    heavy = {"tensorflow", "keras", "numpy", "matplotlib"} & set(sys.modules)
    assert not heavy, heavy
"""


def outside(*arguments, **environment):
    return run_python("-c", WITHOUT_TENSORFLOW, *arguments, env=with_path(**environment))


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
    assert (answer.returncode, answer.stderr) == (0, "")
    assert shown in answer.stdout


def test_completion_by_tab_needs_no_tensorflow():
    line = "accumtrain model=revnet1"
    answer = outside("--shell-completion", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert answer.stdout.split() == ["model=revnet104", "model=revnet110", "model=revnet164"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("job=p", "job=plan job=predict"),
        ("jo", "job="),
        ("device=cpu batch", "batch_ramp= batch_size= batch_test."),
        ("data.randa", "data.randaugment="),
        ("model.memory=re", "model.memory=recompute model.memory=reverse"),
        ("run.resume=", "run.resume=false run.resume=force run.resume=true"),
        ("train optim=keras optim.name=Lion optim.args.beta_1=0.9 eval.e", "eval.every="),
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


def test_the_name_of_a_job_alone(command, seen):
    assert command("train", "batch_size=32").code == 0
    assert command("job=train", "batch_size=32").code == 0
    assert seen[0] == seen[1]


def test_a_whole_float_is_an_integer(command, seen):
    assert command("batch_size=1e2", "accum.steps=5.0", "model.units=[1.0,2,1]", "eval.every=7.0").code == 0
    (config,) = seen
    found = [config.batch_size, config.accum.steps, *config.model.units, config.eval.every]
    assert found == [100, 5, 1, 2, 1, 7]
    assert all(type(each) is int for each in found)


def test_a_mapping_takes_keys_at_any_depth(command, seen):
    assert command("model=keras", "model.name=X", "model.args.a.b=1", "model.args.a.c=x").code == 0
    assert seen[0].model.args == {"a": {"b": 1, "c": "x"}}


def test_mistake_from_outside_needs_no_tensorflow():
    answer = outside("batch_size=100", "accum.steps=8")
    said = "error: batch_size=100 is not divisible by accum.steps=8 x 1 replica; nearest: 96, 104\n"
    assert (answer.returncode, answer.stderr) == (2, said)


def test_help_shows_every_choice(command, own_file):
    own_file("model/tiny.yaml", "")
    answer = command("--help", "--config-dir", "own")
    assert answer.code == 0
    for file in CONF_DIR.glob("*/*.yaml"):
        assert f"\n  {file.parent.name} " in answer.out
        assert file.stem in answer.out
    assert "tiny" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_unknown_option(refused):
    assert "--verbose: no such option; accumtrain --help shows" in refused("--verbose")


def test_part_of_the_configuration(command, refused):
    assert command("--cfg", "job", "--package", "eval").out == "# @package eval\nevery: epoch\nmetrics: null\n"
    assert "error: --package nothing: no such group" in refused("--cfg", "job", "--package", "nothing")


def test_job_gets_the_checked_configuration(command, seen, tmp_path):
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
    assert command() == (130, "", "error: interrupted before there was anything to save\n")


@pytest.mark.parametrize("variable", ["ACCUMTRAIN_TRACEBACK", "HYDRA_FULL_ERROR"])
def test_traceback_on_request(variable):
    answer = outside("batch_size=0", **{variable: "1"})
    assert answer.returncode == 2
    assert "Traceback" in answer.stderr
    assert "ConfigError: batch_size=0" in answer.stderr


def test_own_config_dir(command, seen, own_file):
    own_file("model/tiny.yaml", "defaults: [revnet38]\nunits: [1, 1, 1]\n")
    assert command("--config-dir", "own", "model=tiny").code == 0
    assert seen[0].model.label == "revnet14"


def test_own_config_that_is_no_yaml(refused, own_file):
    own_file("model/tiny.yaml", "units: [1, 1\n")
    message = refused("--config-dir", "own", "model=tiny")
    assert "tiny.yaml" in message
    assert "Traceback" not in message


def test_launcher_that_is_not_installed():
    error = MissingConfigException("no", missing_cfg_file="hydra/launcher/joblib", options=["basic"])
    assert str(explain_error(error)) == "hydra/launcher=joblib: is not installed; pip install 'accumtrain[joblib]'"
