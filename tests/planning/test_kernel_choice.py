"""Which CPU kernels a run uses, and what decides."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from accumtrain.errors import ConfigError, DataError
from accumtrain.kinds.jobs import JOBS
from accumtrain.planning import kernel_choice as module
from accumtrain.planning import kernel_comparison as comparison
from accumtrain.planning.kernel_choice import chosen_kernels, record_kernels
from accumtrain.process import environment
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from accumtrain.runs.folder import folder_of

DESKTOP = ["avx", "avx2", "fma"]
SERVER = [*DESKTOP, "avx512f", "avx512_vnni", "avx512_bf16"]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A CPU without instructions for neural networks, in a process that has not imported TensorFlow."""
    found = SimpleNamespace(instructions=DESKTOP, seconds={"0": 0.30, "1": 0.20}, asked=[])
    for each in (module, comparison):
        monkeypatch.setattr(each, "cpu", lambda: {"model": "a desktop", "instructions": found.instructions})
    monkeypatch.setenv("ACCUMTRAIN_PROGRAM", '["-m", "accumtrain"]')
    monkeypatch.setattr(environment, "shows_gpu", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in (ONEDNN, KERNELS_16BIT):
        monkeypatch.setenv(variable, "to be restored")
        monkeypatch.delenv(variable)
    modules = {name: loaded for name, loaded in sys.modules.items() if name != "tensorflow"}
    monkeypatch.setattr(module, "sys", SimpleNamespace(modules=modules))

    def measure_in_child(request, folder, variables):
        [(variable, value)] = variables.items()
        found.asked.append((variable, value, request["micro_batch"]))
        seconds = found.seconds[value]
        if isinstance(seconds, Exception):
            raise seconds
        return None if seconds is None else {"failed" if isinstance(seconds, str) else "seconds": seconds}

    monkeypatch.setattr(comparison, "measure_in_child", measure_in_child)
    return found


@pytest.fixture
def server(machine):
    """A CPU with instructions for bfloat16, which is slower in it than in float32."""
    machine.instructions, machine.seconds = SERVER, {"1": 0.30, "0": 0.20}
    return machine


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        return compose("batch_size=64", "accum.steps=8", f"run.dir={tmp_path}", "run.name=run", *overrides)

    return of


def chosen(config, job="train", variable=ONEDNN):
    """The value of the variable within a job."""
    with chosen_kernels(config, JOBS[job]):
        record_kernels(replace(config, job=job))
        return environment.os.environ.get(variable)


def begin(config, job="train"):
    """A training that leaves a checkpoint; of the variable's value."""
    folder = folder_of(config)
    folder.mkdir(exist_ok=True)
    with chosen_kernels(config, JOBS[job]):
        record_kernels(config)
        (folder / "checkpoints/step-1").mkdir(parents=True)
        (folder / "checkpoints/step-1/state.index").touch()


def chosen_16bit(config, job="train"):
    return chosen(config, job, KERNELS_16BIT)


@pytest.mark.parametrize(("own", "onednn", "used"), [(0.30, 0.20, "1"), (0.21, 0.20, "0"), (0.20, 0.30, "0")])
def test_onednn_is_used_where_it_is_clearly_faster(machine, config, capsys, own, onednn, used):
    machine.seconds = {"0": own, "1": onednn}
    assert chosen(config()) == used
    assert machine.asked == [(ONEDNN, "0", 8), (ONEDNN, "1", 8)]
    name = "oneDNN's" if used == "1" else "TensorFlow's own"
    said = " ".join(capsys.readouterr().out.split())
    assert f"{name} kernels are used ({ONEDNN}={used})" in said
    assert f"oneDNN's are {own / onednn:.2f} times as fast here" in said


def test_an_earlier_measurement_serves_all_runs_of_this_model_and_size(machine, config):
    chosen(config())
    machine.asked.clear()
    assert chosen(config("run.name=b", "optim=adam")) == "1"
    assert not machine.asked
    assert chosen(config("run.name=c", "data=synthetic", "data.image_size=16")) == "1"
    assert len(machine.asked) == 2


@pytest.mark.parametrize("kinds", [comparison.LIBRARY, comparison.IN_16_BITS])
def test_all_policies_of_a_model_compute_with_the_same_kernels(machine, config, kinds):
    """Else they would differ in their last bits. What is timed for one serves the others."""
    machine.seconds = {"0": 0.30, "1": 0.20}
    policies = ("store", "recompute", "reverse", "900")
    model = ("model=revnet38", "precision=bfloat16")
    found = [comparison.seconds_of_each(config(*model, f"model.memory={each}"), kinds) for each in policies]
    assert found == [machine.seconds] * len(policies)
    assert len(machine.asked) == 2


def another_isa(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")


def another_source(monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "source_digest", lambda: "another")


def another_image_size(monkeypatch, tmp_path):
    (tmp_path / "photos" / "another").mkdir()


def nothing_else(monkeypatch, tmp_path):
    pass


@pytest.mark.parametrize(
    ("change", "measured"),
    [(another_isa, 2), (another_source, 2), (another_image_size, 2), (nothing_else, 0)],
)
def test_a_measurement_serves_what_it_was_made_for(machine, config, monkeypatch, tmp_path, change, measured):
    (tmp_path / "photos").mkdir()
    photos = ("data=folder", f"data.path={tmp_path / 'photos'}")
    chosen(config(*photos))
    machine.asked.clear()
    change(monkeypatch, tmp_path)
    assert chosen(config(*photos, "run.name=another")) == "1"
    assert len(machine.asked) == measured


@pytest.mark.parametrize(("program", "kept"), [("mine.py", True), ("-m mine", False)])
def test_a_measurement_of_an_own_program_is_kept_while_its_file_is_the_same(
    machine, config, monkeypatch, tmp_path, program, kept
):
    """Of a package nothing tells whether it has changed."""
    monkeypatch.setattr(comparison, "are_own_rows", lambda config: False)
    file = tmp_path / "mine.py"
    file.touch()
    monkeypatch.setenv("ACCUMTRAIN_PROGRAM", json.dumps([str(file)] if program == "mine.py" else program.split()))
    for name, touched in (("first", False), ("second", False), ("third", True)):
        machine.asked.clear()
        if touched:
            os.utime(file, ns=(1, 1))
        chosen(config(f"run.name={name}"))
        assert bool(machine.asked) == (name != "second" or not kept)


@pytest.mark.parametrize("overrides", [(), ("accum.steps=4",)])
def test_a_continued_run_keeps_its_kernels(machine, config, monkeypatch, tmp_path, capsys, overrides):
    begin(config())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    machine.seconds = {"0": 0.1, "1": 0.2}
    machine.asked.clear()
    assert chosen(config(*overrides)) == "1"
    assert not machine.asked
    assert f"oneDNN's kernels are used ({ONEDNN}=1), as by this run before" in capsys.readouterr().out


def test_a_run_s_kernels_decide_for_no_other_run(machine, config):
    """A command that goes on with the wrong run is refused later, and must not leave an answer for its own model."""
    begin(config())
    other = config("model=resnet20")
    chosen(other)
    machine.seconds = {"0": 0.1, "1": 0.2}
    assert chosen(config("model=resnet20", "run.name=another")) == "0"
    assert len(machine.asked) == 4


def test_a_run_that_was_not_begun_measures_for_itself(machine, config):
    """What a training has left that ended before its first checkpoint decides nothing."""
    folder_of(config()).mkdir()
    chosen(config())
    machine.seconds = {"0": 0.1, "1": 0.2}
    assert chosen(config("model=resnet20")) == "0"
    assert json.loads((folder_of(config()) / "kernels.json").read_text()) == {"used": "0"}


@pytest.mark.parametrize("job", ["plan", "memory", "bench", "lr"])
def test_what_does_not_train_leaves_no_record_and_asks_none(machine, config, job):
    begin(config())
    machine.seconds = {"0": 0.1, "1": 0.2}
    assert chosen(config("model=resnet20"), job) == "0"
    assert json.loads((folder_of(config()) / "kernels.json").read_text()) == {"used": "1"}
    folder_of(config("run.name=another")).mkdir()
    chosen(config("run.name=another"), job)
    assert not any(folder_of(config("run.name=another")).iterdir())


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"used": 1}', '{"used": "2"}', '{"used": ["1"]}', '{"seconds": {}}']
)
@pytest.mark.parametrize("job", ["train", "evaluate"])
def test_a_damaged_record_is_told(machine, config, capsys, content, job):
    begin(config())
    path = folder_of(config()) / "kernels.json"
    path.write_text(content)
    machine.asked.clear()
    assert chosen(config(), job) == "0"
    assert not machine.asked
    told = " ".join(capsys.readouterr().err.split())
    assert "kernels.json" in told
    assert "TensorFlow's own" in told
    assert path.read_text() == content


def test_a_run_without_a_record_keeps_the_default(machine, config):
    begin(config())
    (folder_of(config()) / "kernels.json").unlink()
    machine.asked.clear()
    for _ in range(2):
        assert chosen(config()) == "0"
    assert not machine.asked
    assert json.loads((folder_of(config()) / "kernels.json").read_text()) == {"used": "0"}


@pytest.mark.parametrize(
    "content", ["", "{", '{"seconds": 1}', '{"seconds": {"0": 1.0}}', '{"seconds": {"0": 1.0, "1": "x"}}']
)
def test_a_damaged_measurement_is_made_again(machine, config, tmp_path, content):
    chosen(config())
    (path,) = (tmp_path / "cache/accumtrain").iterdir()
    path.write_text(content)
    assert chosen(config()) == "1"
    assert len(machine.asked) == 4
    assert json.loads(path.read_text()) == {"seconds": machine.seconds}


CRASHED = RuntimeError("a probe ended with code -4:\n  File ...\nno such kernel\n")


@pytest.mark.parametrize(
    ("own", "onednn", "said", "used"),
    [
        (0.3, None, "timing oneDNN's kernels takes more memory than is free", "TensorFlow's own are used"),
        (0.3, CRASHED, "oneDNN's kernels fail here: a probe ended with code -4", "TensorFlow's own kernels are used"),
        (CRASHED, 0.3, "TensorFlow's own kernels fail here: a probe ended with code -4", "oneDNN's kernels are used"),
        (CRASHED, CRASHED, "the kernels can't be compared", "TensorFlow's own are used"),
        ("no primitive", 0.3, "TensorFlow's own kernels fail here: no primitive", "oneDNN's kernels are used"),
    ],
)
def test_where_one_kind_fails_the_other_is_used(machine, config, capsys, own, onednn, said, used):
    machine.seconds = {"0": own, "1": onednn}
    for name in ("first", "second"):
        machine.asked.clear()
        assert chosen(config(f"run.name={name}")) == ("1" if "oneDNN" in used else "0")
        assert len(machine.asked) == 2, "it is not kept, as it may be mended"
        out = " ".join(capsys.readouterr().out.split())
        assert said in out
        assert used in out


def test_a_mistake_ends_the_job_as_it_would_without(machine, config):
    machine.seconds = {"0": DataError("no such file"), "1": 0.2}
    with pytest.raises(DataError, match="no such file"):
        chosen(config())


@pytest.mark.parametrize("instructions", [[*DESKTOP, "avx512_vnni"], [*DESKTOP, "avx_vnni"], ["asimd", "sve"], []])
def test_tensorflows_default_holds_on_other_processors(machine, config, instructions):
    machine.instructions = instructions
    assert chosen(config()) is None
    assert not machine.asked


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_users_choice_holds(machine, config, monkeypatch, capsys, value):
    monkeypatch.setenv(ONEDNN, value)
    begin(config())
    monkeypatch.setenv(ONEDNN, "1")
    assert chosen(config()) == "1"
    assert environment.os.environ[ONEDNN] == "1"
    assert not machine.asked
    told = " ".join(capsys.readouterr().err.split())
    differs = "this run began with TensorFlow's own kernels, and now oneDNN's compute, whose last bits differ: the"
    assert (f"{differs} environment says {ONEDNN}=1" in told) == (value == "0")
    monkeypatch.delenv(ONEDNN)
    assert chosen(config()) == value, "what the run began with, whatever decided it"


@pytest.mark.parametrize("variable", [ONEDNN, KERNELS_16BIT])
@pytest.mark.parametrize("value", ["", "false", "2"])
def test_a_value_that_means_nothing_is_refused(machine, config, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable}='{value}' in the environment: must be 0 or 1, 0 for "):
        chosen(config())


@pytest.mark.parametrize("left", [None, "1"])
def test_a_job_leaves_the_environment_as_it_was(machine, config, monkeypatch, left):
    if left is not None:
        monkeypatch.setenv(ONEDNN, left)
    chosen(config())
    assert environment.os.environ.get(ONEDNN) == left


def test_the_second_job_of_a_process_has_the_kernels_of_the_first(machine, config, capsys):
    begin(config("run.name=own"))
    machine.seconds = {"0": 0.1, "1": 0.2}
    with chosen_kernels(config("model=resnet20"), JOBS["bench"]):
        module.sys.modules["tensorflow"] = None  # it reads the variable now
    assert chosen(config("model=resnet32", "run.name=second"), "bench") == "0"
    assert len(machine.asked) == 4, "nothing can be chosen any more"
    reason = f"TensorFlow was imported in this process before ({ONEDNN}=0)"
    assert f"TensorFlow's own kernels are used: {reason}" in " ".join(capsys.readouterr().out.split())
    assert chosen(config("run.name=own")) == "0"
    told = " ".join(capsys.readouterr().err.split())
    assert (
        f"this run began with oneDNN's kernels, and now TensorFlow's own compute, whose last bits differ: {reason}"
        in told
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("instructions", [DESKTOP, SERVER])
def test_nothing_is_measured_beside_other_workers(machine, config, precision, instructions):
    """Each would measure by itself, and wait in the measurement for the others."""
    machine.instructions = instructions
    workers = ("device=multiworker", "device.workers=[a:1,b:1]", "device.index=0", f"precision={precision}")
    with chosen_kernels(config(*workers), JOBS["train"]):
        assert not {ONEDNN, KERNELS_16BIT} & environment.os.environ.keys()
    assert not machine.asked


@pytest.mark.parametrize("override", ["device.xla=true", "device=mirrored", "device=tpu"])
def test_only_kernels_of_one_cpu_are_chosen(machine, config, override):
    assert chosen(config(override)) is None
    assert not machine.asked


def test_what_does_not_compute_chooses_nothing(machine, config):
    assert chosen(config(), "report") is None
    assert not machine.asked


def test_what_is_verified_is_what_a_training_computes(machine, config):
    assert chosen(config(), "verify") == chosen(config()) == "1"


@pytest.mark.parametrize("job", ["evaluate", "predict", "export"])
def test_what_uses_a_run_computes_with_its_kernels(machine, config, job):
    begin(config())
    machine.asked.clear()
    assert chosen(config("device.memory_limit_mb=100"), job) is None  # oneDNN's may crash there
    assert chosen(config(), job) == "1"
    assert not machine.asked


@pytest.mark.parametrize("job", ["evaluate", "predict", "export"])
def test_what_uses_a_run_does_not_ask_the_cache(machine, config, job):
    """The run may have been made elsewhere, with the default."""
    chosen(config())
    machine.asked.clear()
    assert chosen(config("run.name=another"), job) == "0"
    assert not machine.asked


def test_a_cache_that_can_not_be_written_is_done_without(machine, config, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert chosen(config()) == "1"


# --- in 16 bits or in float32 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("half", "float32", "used"), [(0.30, 0.20, "0"), (0.21, 0.20, "1"), (0.20, 0.30, "1")])
def test_float32_computes_where_it_is_clearly_faster(server, config, capsys, half, float32, used):
    server.seconds = {"1": half, "0": float32}
    assert chosen_16bit(config("precision=bfloat16")) == used
    assert server.asked == [(KERNELS_16BIT, "1", 8), (KERNELS_16BIT, "0", 8)]
    assert ONEDNN not in environment.os.environ
    said = " ".join(capsys.readouterr().out.split())
    assert "timing bfloat16's CPU kernels and float32's, once for this model and size" in said
    name = "float32's" if used == "0" else "bfloat16's"
    assert f"{name} kernels are used ({KERNELS_16BIT}={used}): for this model and size" in said
    assert f"float32's are {half / float32:.2f} times as fast here" in said


def test_a_continued_run_keeps_its_dtype(server, config, monkeypatch, tmp_path):
    begin(config("precision=bfloat16"))
    for name in ("here", "elsewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        server.seconds = {"1": 0.1, "0": 0.2}
        server.asked.clear()
        assert chosen_16bit(config("precision=bfloat16")) == "0"
        assert not server.asked


def test_each_job_of_a_process_has_its_own_dtype(server, config):
    """It is read when a graph is traced."""
    server.seconds = {"1": 0.3, "0": 0.2}
    module.sys.modules["tensorflow"] = None
    assert chosen_16bit(config("precision=bfloat16")) == "0"
    assert KERNELS_16BIT not in environment.os.environ
    server.seconds = {"1": 0.1, "0": 0.2}
    assert chosen_16bit(config("precision=bfloat16", "model=resnet20", "run.name=second")) == "1"
    assert len(server.asked) == 4


def test_layers_of_users_choose_their_dtype_themselves(server, config, monkeypatch):
    monkeypatch.setattr(module, "are_own_rows", lambda config: False)
    assert chosen_16bit(config("precision=bfloat16")) is None
    assert not server.asked


def test_accumtrain_s_layers_are_measured_in_a_users_program(server, config, monkeypatch):
    monkeypatch.delenv("ACCUMTRAIN_PROGRAM")
    assert chosen_16bit(config("precision=bfloat16")) == "0"


def test_a_run_from_a_desktop_goes_on_with_the_default_on_a_server(machine, config):
    """What decided there were other kernels."""
    begin(config("precision=bfloat16"))
    machine.instructions = SERVER
    machine.asked.clear()
    assert chosen_16bit(config("precision=bfloat16")) == "1"
    assert not machine.asked


@pytest.mark.parametrize(
    ("instructions", "overrides"),
    [
        (SERVER, ["precision=float32"]),
        (SERVER, ["precision=float16"]),
        ([*SERVER, "avx512_fp16"], ["precision=float16"]),
        ([*SERVER, "amx_tile", "amx_bf16"], ["precision=bfloat16"]),
        ([*SERVER, "amx_tile", "amx_bf16", "amx_fp16"], ["precision=float16"]),
        ([*DESKTOP, "avx512f", "avx512_vnni"], ["precision=bfloat16"]),
        (SERVER, ["precision=bfloat16", "model=keras", "model.name=MobileNetV2"]),
        (SERVER, ["precision=bfloat16", "device=mirrored"]),
    ],
)
def test_nothing_is_measured_where_one_kind_is_known_to_be_faster(server, config, instructions, overrides):
    server.instructions = instructions
    assert chosen_16bit(config(*overrides)) is None
    assert not server.asked


@pytest.mark.parametrize(("variable", "value"), [(KERNELS_16BIT, "0"), (KERNELS_16BIT, "1"), (ONEDNN, "0")])
def test_the_users_choice_of_16_bits_holds(server, config, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    chosen(config("precision=bfloat16"))
    assert environment.os.environ[variable] == value
    assert not server.asked


def test_where_float32_can_not_be_timed_16_bits_stay(server, config, capsys):
    server.seconds = {"1": 0.3, "0": None}
    assert chosen_16bit(config("precision=bfloat16")) == "1"
    out = capsys.readouterr().out
    assert "timing float32's kernels takes more memory than is free" in out
    assert "the kernels can't be compared: bfloat16's are used" in out


def test_where_bfloat16_fails_float32_computes(server, config, capsys):
    """As with ONEDNN_MAX_CPU_ISA=AVX2, of which TensorFlow knows nothing."""
    server.seconds = {"1": "no primitive", "0": 0.3}
    assert chosen_16bit(config("precision=bfloat16")) == "0"
    assert f"float32's kernels are used ({KERNELS_16BIT}=0): the others fail" in capsys.readouterr().out


def test_a_model_without_kernels_to_time_has_the_default(server, config, capsys):
    server.seconds = {"1": 0, "0": 0}
    assert chosen_16bit(config("precision=bfloat16")) == "1"
    assert "no convolution, matrix product or batch norm to time" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "precision"), [(comparison.LIBRARY, "float32"), (comparison.IN_16_BITS, "bfloat16")], ids=["32", "16"]
)
def test_children_time_both_kinds(config, monkeypatch, tmp_path, kinds, precision):
    """Nothing is replaced here, so the child's half is run, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = config("model=lenet5", "data=digits", f"precision={precision}")
    seconds = comparison.seconds_of_each(small, kinds)
    assert list(seconds) == list(kinds.names)
    assert all(0.0 < each < 1.0 for each in seconds.values()), "of a micro-batch of 8 images"
    monkeypatch.setattr(comparison, "measure_in_child", None)
    assert comparison.seconds_of_each(small, kinds) == seconds, "as measured before"
