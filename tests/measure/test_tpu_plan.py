"""job=plan device=tpu, with stand-ins for the lowering and for the compiler."""

import json
import sys
from functools import partial

import pytest

from accumtrain import dispatch
from accumtrain.config.read import to_mapping
from accumtrain.errors import ConfigError
from accumtrain.measure.tpu import compiler as tpu_compiler
from accumtrain.measure.tpu import plan as tpu
from tests.programs import output_of, run_python, with_path

GB = 2**30
NEEDS = {"temporary_bytes": GB, "argument_bytes": 2 * GB, "output_bytes": GB, "aliased_bytes": GB}


@pytest.fixture
def config(compose, tmp_path):
    run = (f"run.dir={tmp_path}", "run.name=mine")
    return partial(compose, "job=plan", "device=tpu", "model=lenet5", "batch_size=48", "accum.steps=4", *run)


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Put a short program in the place of the compiler's, and one that answers at once in that of the lowering."""

    def put(program):
        head = "import json, pathlib, sys\nfolder = pathlib.Path(sys.argv[1])\n"
        answer = "(folder / 'answer.json').write_text(json.dumps({}))\n"
        lowering = head + "(folder / 'update.jax').write_text('program')\n" + answer.format("dict(flops=5 * 10**9)")
        monkeypatch.setattr(tpu, "child_command", lambda: [sys.executable, "-c", lowering])
        script = tmp_path / "compiler.py"
        script.write_text(f"{head}request = json.loads((folder / 'request.json').read_text())\n{program}")
        monkeypatch.setattr(tpu, "SCRIPT", script)
        monkeypatch.setenv(tpu.COMPILER, sys.executable)

    return put


def answering(found, code=0):
    return f"(folder / 'answer.json').write_text({json.dumps(json.dumps(found))}); sys.exit({code})"


def test_plan_is_what_the_compiler_says(config, compiler, capsys, tmp_path):
    compiler(
        "assert request['topology'] == 'v6e:2x2' and (folder / 'update.jax').read_text() == 'program'\n"
        + answering(NEEDS)
    )
    dispatch.run(config("device.tpu_topology=v6e:2x2"))
    written = json.loads((tmp_path / "trials/plan-mine/plan.json").read_text())
    assert (written["tpu_topology"], written["hbm_bytes"]) == ("v6e:2x2", 32 * GB)
    assert [trial["memory"] for trial in written["trials"]] == ["store", "recompute"]
    trial = written["trials"][0]
    assert (trial["micro_batch"], trial["accum_steps"], trial["fits"]) == (12, 4, True)
    assert (trial["temporary_bytes"], trial["argument_bytes"], trial["output_bytes"]) == (GB, 2 * GB, 0)
    assert trial["flops"] == 5 * 10**9
    shown = capsys.readouterr().out
    assert "lenet5, adafactor, float32, batch_size=48 on one device of v6e:2x2, 32.0 GB" in shown


def test_what_needs_more_than_the_chip_has_does_not_fit(config, compiler, capsys):
    compiler(answering(NEEDS | {"temporary_bytes": 15 * GB}))
    assert not any(trial["fits"] for trial in dispatch.run(config())["trials"])
    assert "no (needs 17.0 GB)" in capsys.readouterr().out


def test_a_program_that_the_compiler_refuses_does_not_fit(config, compiler, capsys):
    compiler(answering({"message": "Used 20.5G of 15.75G hbm"}, 6))
    trials = dispatch.run(config())["trials"]
    assert [(trial["fits"], trial["temporary_bytes"]) for trial in trials] == [(False, None)] * 2
    assert "no (Used 20.5G of 15.75G hbm)" in capsys.readouterr().out


def test_auto_takes_more_steps_until_it_fits(config, compiler, tmp_path):
    compiler(
        f"calls = pathlib.Path({str(tmp_path / 'calls')!r}); calls.open('a').write('x')\n"
        f"if len(calls.read_text()) < 3:\n    {answering({'message': 'Used 20G of 15.75G hbm'}, 6)}\n{answering(NEEDS)}"
    )
    trials = dispatch.run(config("accum.steps=auto"))["trials"]
    found = [(trial["memory"], trial["accum_steps"], trial["fits"]) for trial in trials]
    assert found == [("store", 1, False), ("store", 2, False), ("store", 4, True), ("recompute", 1, True)]


def test_a_topology_the_compiler_does_not_know(config, compiler):
    compiler(answering({"message": "device.tpu_topology=v5e:3x7: why"}, 2))
    with pytest.raises(ConfigError, match=r"device\.tpu_topology=v5e:3x7: why"):
        dispatch.run(config("device.tpu_topology=v5e:3x7"))


@pytest.mark.parametrize("compiler", [None, "nowhere/python"])
def test_without_a_compiler_the_remedy_is_named(tmp_path, compiler):
    environment = {"PYTHONPATH": with_path()["PYTHONPATH"]} | ({} if compiler is None else {tpu.COMPILER: compiler})
    done = run_python("-m", "accumtrain", "job=plan", "device=tpu", f"run.dir={tmp_path}", env=environment)
    assert done.returncode == 2
    assert "make tpu-compile" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_parent_does_without_tensorflow():
    program = (
        "import sys; from accumtrain import dispatch; from accumtrain.measure import plan;"
        "from accumtrain.measure.tpu import plan as tpu;"
        "assert 'tensorflow' not in sys.modules"
    )
    output_of("-c", program)


@pytest.mark.slow
@pytest.mark.xla
def test_the_compiler_takes_the_update_that_was_lowered(config, tmp_path):
    """That of this CPU, by the same calls."""
    jax = pytest.importorskip("jax")
    answer = tpu.lower_request({"config": to_mapping(config())}, tmp_path)
    convolutions, dense = 8 * 8 * 25 * 6 + 4 * 4 * 150 * 16, 64 * 120 + 120 * 84 + 84 * 10
    assert answer == {"flops": 2 * 48 * (3 * (convolutions + dense) - 8 * 8 * 25 * 6)}  # images need no gradient
    found = tpu_compiler._compiled((tmp_path / tpu.PROGRAM).read_bytes(), jax.devices("cpu")[0])
    batch = 12 * (8 * 8 + 1 + 1) * 4
    assert found["aliased_bytes"] + batch == found["argument_bytes"]
    assert (found["device"], found["temporary_bytes"] > batch) == ("cpu", True)


def test_without_jax_the_remedy_is_named(config, compiler, monkeypatch):
    compiler(answering(NEEDS))
    monkeypatch.setattr(tpu, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"JAX hands the update over .* pip install 'accumtrain\[jax\]'"):
        dispatch.run(config())
