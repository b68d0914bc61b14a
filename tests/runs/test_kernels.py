"""The choice of a run's CPU kernels."""

import sys
from types import SimpleNamespace

import pytest

from accumtrain.config.jobs import JOBS
from accumtrain.errors import ConfigError
from accumtrain.process import environment
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from accumtrain.runs import kernels as module
from accumtrain.runs.kernels import choose_kernels
from tests.begun import leave_checkpoint

DESKTOP = ["avx", "avx2", "fma"]
SERVER = [*DESKTOP, "avx512f", "avx512_vnni", "avx512_bf16"]
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
SMALL, LARGE = ("data=digits",), ("data=synthetic", "data.image_size=32")
NOTHING = (None, None)
RECORDS = ("data=tfrecord", "data.path=a", "data.test_path=b", "data.num_classes=2")


@pytest.fixture
def machine(monkeypatch):
    """A CPU without instructions for neural networks, in a process that has not imported TensorFlow."""
    found = SimpleNamespace(instructions=DESKTOP, vendor=INTEL)
    monkeypatch.setattr(module, "cpu", lambda: {"model": "a desktop", "instructions": found.instructions})
    monkeypatch.setattr(module, "read_vendor", lambda: found.vendor)
    monkeypatch.setattr(environment, "shows_gpu", lambda: False)
    for variable in (ONEDNN, KERNELS_16BIT):
        monkeypatch.setenv(variable, "to be restored")
        monkeypatch.delenv(variable)
    modules = {name: loaded for name, loaded in sys.modules.items() if name != "tensorflow"}
    monkeypatch.setattr(module, "sys", SimpleNamespace(modules=modules))
    return found


@pytest.fixture
def server(machine):
    """A CPU with instructions for bfloat16, which is slower in it than in float32."""
    machine.instructions = SERVER
    return machine


@pytest.fixture
def config(compose, tmp_path):
    def of(*overrides):
        images = [] if any(each.startswith("data=") for each in overrides) else LARGE
        return compose("batch_size=64", "accum.steps=8", f"run.dir={tmp_path}", "run.name=run", *images, *overrides)

    return of


def both_chosen(config, job="train"):
    """Return the values of both variables within a job."""
    with choose_kernels(config, JOBS[job]):
        return environment.os.environ.get(ONEDNN), environment.os.environ.get(KERNELS_16BIT)


def chosen(config, job="train"):
    return both_chosen(config, job)[0]


def chosen_16bit(config, job="train"):
    return both_chosen(config, job)[1]


@pytest.mark.parametrize("vendor", [INTEL, AMD])
@pytest.mark.parametrize(
    ("instructions", "overrides", "values"),
    [
        (DESKTOP, LARGE, ("1", None)),
        (DESKTOP, [*LARGE, "precision=bfloat16"], ("1", None)),
        (DESKTOP, SMALL, ("0", None)),
        (DESKTOP, [*SMALL, "precision=float16"], ("0", None)),
        (DESKTOP, [*SMALL, "data.image_size=16"], ("1", None)),
        (DESKTOP, ["data=synthetic", "data.image_size=15"], ("0", None)),
        (DESKTOP, ["data=synthetic", "data.image_size=16"], ("1", None)),
        (DESKTOP, ["data=synthetic", "data.image_size=[8,31]"], ("0", None)),
        (DESKTOP, ["data=synthetic", "data.image_size=[8,32]"], ("1", None)),
        (DESKTOP, ["data=folder", "data.path=photos"], ("1", None)),
        (DESKTOP, ["data=folder", "data.path=photos", "data.image_size=8"], ("0", None)),
        (DESKTOP, RECORDS, ("1", None)),
        (DESKTOP, [*RECORDS, "data.raw_shape=[8,8,1]"], ("0", None)),
        (DESKTOP, [*RECORDS, "data.raw_shape=[28,28,1]"], ("1", None)),
        (["avx"], LARGE, NOTHING),
        ([*DESKTOP, "avx512_vnni"], SMALL, NOTHING),
        ([*DESKTOP, "avx_vnni"], LARGE, NOTHING),
        (["asimd", "sve"], LARGE, NOTHING),
        ([], LARGE, NOTHING),
        (SERVER, ["precision=float32"], NOTHING),
        (SERVER, ["precision=float16"], NOTHING),
        ([*SERVER, "avx512_fp16"], ["precision=float16"], NOTHING),
        ([*SERVER, "amx_tile", "amx_bf16"], ["precision=bfloat16"], NOTHING),
        ([*SERVER, "amx_tile", "amx_bf16", "amx_fp16"], ["precision=float16"], NOTHING),
        ([*DESKTOP, "avx512f", "avx512_vnni"], ["precision=bfloat16"], NOTHING),
        (SERVER, ["precision=bfloat16", "model=keras", "model.name=MobileNetV2"], NOTHING),
        (SERVER, ["precision=bfloat16", "device=gpu"], NOTHING),
    ],
)
def test_processor_images_and_precision_decide(machine, config, vendor, instructions, overrides, values):
    machine.instructions, machine.vendor = instructions, vendor
    assert both_chosen(config(*overrides)) == values


@pytest.mark.parametrize(("vendor", "value"), [(INTEL, "0"), (AMD, "1"), ("", "1")])
@pytest.mark.parametrize("images", [SMALL, LARGE])
def test_the_vendor_decides_of_bfloat16_without_amx(server, config, vendor, value, images):
    server.vendor = vendor
    assert both_chosen(config("precision=bfloat16", *images)) == (None, value)


@pytest.mark.parametrize(
    ("instructions", "overrides", "said"),
    [
        (DESKTOP, LARGE, f"oneDNN's kernels are used ({ONEDNN}=1): they are the faster ones on this processor"),
        (DESKTOP, SMALL, f"TensorFlow's own kernels are used ({ONEDNN}=0): they are the faster ones for images"),
        (SERVER, ["precision=bfloat16"], f"float32's kernels are used ({KERNELS_16BIT}=0): they are the faster ones"),
    ],
)
def test_the_choice_and_its_reason_are_said(machine, config, capsys, instructions, overrides, said):
    machine.instructions = instructions
    both_chosen(config(*overrides))
    assert said in " ".join(capsys.readouterr().out.split())


def test_all_policies_of_a_model_compute_with_the_same_kernels(machine, config):
    """Other kernels would differ in their last bits."""
    for policy in ("store", "recompute", "reverse", "900"):
        assert chosen(config("model=revnet38", f"model.memory={policy}")) == "1"


def test_a_run_that_goes_on_has_the_kernels_of_this_machine(machine, config, tmp_path):
    """The rule is a function of machine and configuration; no file of the run has a say."""
    assert chosen(config()) == "1"
    leave_checkpoint(config())
    machine.instructions = [*DESKTOP, "avx512_vnni"]
    assert chosen(config()) is None, "TensorFlow chooses oneDNN's by itself"
    machine.instructions = DESKTOP
    assert chosen(config(*SMALL)) == "0"
    assert [path.name for path in tmp_path.rglob("*kernels*")] == []


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_users_choice_holds(machine, config, monkeypatch, capsys, value):
    monkeypatch.setenv(ONEDNN, value)
    assert chosen(config()) == value
    assert environment.os.environ[ONEDNN] == value
    assert "kernels are used" not in capsys.readouterr().out


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
    with choose_kernels(config(*SMALL), JOBS["bench"]):
        module.sys.modules["tensorflow"] = None  # it reads the variable now
    assert chosen(config("run.name=second"), "bench") == "0", "nothing can be chosen any more"
    reason = f"TensorFlow was imported in this process before ({ONEDNN}=0)"
    assert f"TensorFlow's own kernels are used: {reason}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("instructions", [DESKTOP, SERVER])
@pytest.mark.parametrize("images", [SMALL, LARGE])
def test_a_run_has_the_same_kernels_on_any_number_of_cpus(machine, config, precision, instructions, images):
    """It may go on in another number of processes, with the same bits."""
    machine.instructions = instructions
    workers = ("device=multiworker", "device.workers=[a:1,b:1]", "device.index=0")
    divided = [("device.virtual=2",), ("device=mirrored", "device.virtual=2"), ("device=mirrored",), workers]
    alone = both_chosen(config(*images, f"precision={precision}"))
    assert alone != NOTHING or (instructions, precision) == (SERVER, "float32")
    for devices in divided:
        assert both_chosen(config(*images, f"precision={precision}", *devices)) == alone


@pytest.mark.parametrize(
    ("overrides", "job"),
    [
        (["device.xla=true"], "train"),
        (["device.runtime=jax"], "train"),
        (["device=gpu"], "train"),
        (["device=tpu"], "train"),
        ([], "report"),
    ],
)
def test_only_kernels_of_a_cpu_that_computes_are_chosen(machine, config, overrides, job):
    assert both_chosen(config(*overrides), job) == NOTHING


def test_what_is_verified_is_what_a_training_computes(machine, config):
    assert chosen(config(), "verify") == chosen(config()) == "1"


@pytest.mark.parametrize("job", ["evaluate", "predict", "export"])
def test_what_uses_a_run_computes_with_its_kernels(machine, config, job):
    assert chosen(config("device.memory_limit_mb=100"), job) is None  # oneDNN's may crash there
    assert chosen(config(), job) == chosen(config()) == "1"
    assert chosen(config(*SMALL), job) == chosen(config(*SMALL)) == "0"


# ---- in 16 bits or in float32 ----


def test_each_job_of_a_process_has_its_own_dtype(server, config):
    """The variable is read when a graph is traced."""
    module.sys.modules["tensorflow"] = None
    assert chosen_16bit(config("precision=bfloat16")) == "0"
    assert KERNELS_16BIT not in environment.os.environ
    server.vendor = AMD
    assert chosen_16bit(config("precision=bfloat16", "run.name=second")) == "1"


def test_layers_of_users_choose_their_dtype_themselves(server, config, monkeypatch):
    monkeypatch.setattr(module, "has_builtin_layers", lambda config: False)
    assert chosen_16bit(config("precision=bfloat16")) is None


@pytest.mark.parametrize(("variable", "value"), [(KERNELS_16BIT, "0"), (KERNELS_16BIT, "1"), (ONEDNN, "0")])
def test_the_users_choice_of_16_bits_holds(server, config, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    chosen(config("precision=bfloat16"))
    assert environment.os.environ[variable] == value
