"""Which CPU kernels a run uses, and what decides."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from accumtrain.errors import DataError
from accumtrain.kinds.jobs import JOBS
from accumtrain.planning import kernel_choice as module
from accumtrain.planning.kernel_choice import choose_kernels
from accumtrain.process import environment
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from accumtrain.runs.folder import folder_of

DESKTOP = ["avx", "avx2", "fma"]
SERVER = [*DESKTOP, "avx512f", "avx512_vnni", "avx512_bf16"]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A CPU without instructions for neural networks, in a process that has not imported TensorFlow."""
    found = SimpleNamespace(instructions=DESKTOP, seconds={"0": 0.30, "1": 0.20}, asked=[])
    monkeypatch.setattr(module, "cpu", lambda: {"model": "a desktop", "instructions": found.instructions})
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
        return None if seconds is None else {"seconds": seconds}

    monkeypatch.setattr(module, "measure_in_child", measure_in_child)
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
    choose_kernels(config, JOBS[job])
    return environment.os.environ.get(variable)


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


def test_an_earlier_measurement_serves_all_runs_of_this_model_and_size(machine, config, monkeypatch):
    chosen(config())
    for overrides, measured in [(("run.name=b", "optim=adam"), 0), (("run.name=c", "data.image_size=16"), 2)]:
        monkeypatch.delenv(ONEDNN)
        machine.asked.clear()
        assert chosen(config("data=synthetic", *overrides) if measured else config(*overrides)) == "1"
        assert len(machine.asked) == measured


def test_a_continued_run_keeps_its_kernels(machine, config, monkeypatch, tmp_path):
    folder_of(config()).mkdir()
    chosen(config())
    monkeypatch.delenv(ONEDNN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    machine.seconds = {"0": 0.1, "1": 0.2}
    machine.asked.clear()
    assert chosen(config()) == "1"
    assert not machine.asked


@pytest.mark.parametrize(
    "content", ["", "{", '{"seconds": 1}', '{"seconds": {"0": 1.0}}', '{"seconds": {"0": 1.0, "1": "x"}}']
)
def test_a_damaged_measurement_is_made_again(machine, config, content):
    path = folder_of(config()) / "kernels.json"
    path.parent.mkdir()
    path.write_text(content)
    assert chosen(config()) == "1"
    assert json.loads(path.read_text()) == {"seconds": machine.seconds}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "timing oneDNN's kernels takes more memory than is free"),
        (
            RuntimeError("ended with code 1:\n  File ...\nno such kernel\n"),
            "oneDNN's kernels fail here: no such kernel",
        ),
    ],
)
def test_where_one_kind_can_not_be_timed_tensorflows_default_stays(machine, config, capsys, result, said):
    machine.seconds = {"0": 0.3, "1": result}
    assert chosen(config()) is None
    out = capsys.readouterr().out
    assert said in out
    assert "the kernels can't be compared: TensorFlow's own are used" in out


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
def test_the_users_choice_holds(machine, config, monkeypatch, value):
    monkeypatch.setenv(ONEDNN, value)
    assert chosen(config()) == value
    assert not machine.asked


@pytest.mark.parametrize("override", ["device.xla=true", "device=mirrored", "device=tpu"])
def test_only_kernels_of_one_cpu_are_chosen(machine, config, override):
    assert chosen(config(override)) is None
    assert not machine.asked


@pytest.mark.parametrize("job", ["evaluate", "predict", "report", "verify"])
def test_short_jobs_measure_nothing(machine, config, job):
    assert chosen(config(), job) is None
    assert not machine.asked


@pytest.mark.parametrize("job", ["evaluate", "predict", "export"])
def test_what_uses_a_run_computes_with_its_kernels(machine, config, monkeypatch, job):
    folder_of(config()).mkdir()
    chosen(config())
    monkeypatch.delenv(ONEDNN)
    machine.asked.clear()
    assert chosen(config("device.memory_limit_mb=100"), job) is None  # oneDNN's may crash there
    assert chosen(config(), job) == "1"
    assert not machine.asked


def test_what_uses_a_run_does_not_ask_the_cache(machine, config, monkeypatch):
    """The run may have been made elsewhere, with the default."""
    chosen(config())
    monkeypatch.delenv(ONEDNN)
    assert chosen(config("run.name=another"), "evaluate") is None


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
    folder_of(config()).mkdir()
    assert chosen_16bit(config("precision=bfloat16")) == "0"
    for name in ("here", "elsewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        monkeypatch.delenv(KERNELS_16BIT)
        server.seconds = {"1": 0.1, "0": 0.2}
        server.asked.clear()
        assert chosen_16bit(config("precision=bfloat16")) == "0"
        assert not server.asked


def test_a_run_from_a_desktop_is_measured_on_a_server(machine, config, monkeypatch):
    """What was measured there were other kernels."""
    folder_of(config()).mkdir()
    chosen(config("precision=bfloat16"))
    monkeypatch.delenv(ONEDNN)
    machine.instructions = SERVER
    machine.asked.clear()
    assert chosen_16bit(config("precision=bfloat16")) == "1"
    assert [variable for variable, *_ in machine.asked] == [KERNELS_16BIT] * 2


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
    server.seconds = {"1": 0.3, "0": RuntimeError("no such kernel")}
    assert chosen_16bit(config("precision=bfloat16")) is None
    out = capsys.readouterr().out
    assert "float32's kernels fail here: no such kernel" in out
    assert "the kernels can't be compared: bfloat16's are used" in out
