"""The import of TensorFlow: what it brings along, and the settings before it."""

import os
import sys
import tempfile
import time
from contextvars import Context
from types import SimpleNamespace

import pytest

from accumtrain.devices.config import CpuConfig
from accumtrain.errors import ConfigError
from accumtrain.process import environment, logs
from tests.programs import output_of, run_python, with_path

SCRIPT = """
import sys
from accumtrain.process import environment
from accumtrain.devices.config import CpuConfig

environment.prepare(CpuConfig())
assert "tensorflow" in sys.modules
assert not {"keras", "matplotlib", "PIL"} & sys.modules.keys()

import accumtrain.train.train

assert not {"keras", "matplotlib"} & sys.modules.keys()

import keras
import tensorflow as tf

assert tf.keras.optimizers.Lion is keras.optimizers.Lion
assert keras.backend.backend() == "tensorflow"
"""


def test_keras_is_imported_only_when_asked_for():
    done = run_python("-c", SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")


GARBAGE = """
import gc
from accumtrain.process import environment
from accumtrain.devices.config import CpuConfig

{before}
environment.prepare(CpuConfig())
assert gc.isenabled() is {enabled}
assert (gc.get_freeze_count() > 100_000) is {frozen}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "enabled", "frozen"),
    [
        ("", True, True),
        ("gc.disable()", False, True),
        ("import tensorflow", True, False),  # the program's own import: its objects are not ours to freeze
    ],
    ids=["on", "off", "imported before"],
)
def test_garbage_is_looked_for_as_before_but_not_in_tensorflow(before, enabled, frozen):
    output_of("-c", GARBAGE.format(before=before, enabled=enabled, frozen=frozen))


AGE = """
import time

first_line = time.time()
from accumtrain.process import environment

age, now = environment.process_seconds(), time.time()
print(now - age, first_line)
time.time = lambda: now + 3600  # the clock is set
print(environment.process_seconds() - age, environment.job_seconds() - age)
"""


def test_the_start_of_a_process_lies_between_its_command_and_its_first_line():
    called = time.time()
    started, first_line, *ages = map(float, output_of("-c", AGE).split())
    tick = 0.02  # Linux counts in hundredths of a second
    assert called - tick <= started <= first_line + tick
    assert all(0 <= age < 60 for age in ages), "whatever the clock says"


def test_settings_of_kernels_are_the_users_own(monkeypatch):
    for name in [name for name in os.environ if name.startswith(environment.PREFIXES)]:
        monkeypatch.delenv(name)
    assert environment.kernel_settings() == {}
    for name in ("ONEDNN_MAX_CPU_ISA", environment.KERNELS_16BIT, "TF_NUM_INTRAOP_THREADS", "HOME"):
        monkeypatch.setenv(name, "set")
    for name in (*environment.VARIABLES, environment.CPU_LIMIT, environment.OPERATIONS_AT_ONCE, logs.LOG_LEVEL):
        monkeypatch.setenv(name, "made by each run")
    found = dict.fromkeys(sorted(["ONEDNN_MAX_CPU_ISA", environment.KERNELS_16BIT, "TF_NUM_INTRAOP_THREADS"]), "set")
    assert environment.kernel_settings() == found


QUIET = """
import accumtrain
import importlib.util
assert importlib.util.find_spec("tensorflow")  # which imports nothing
import tensorflow as tf
tf.constant(1.0)
print(type(tf.__spec__.loader).__name__, tf.__loader__ is tf.__spec__.loader)
"""


@pytest.mark.slow
def test_a_program_that_imports_accumtrain_first_shows_no_log_line():
    environment_of_user = {name: value for name, value in with_path().items() if name != logs.LOG_LEVEL}
    done = run_python("-c", QUIET, env=environment_of_user)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SourceFileLoader True\n", "")


def test_logs_are_shown_if_tensorflow_came_first_or_if_asked_for(monkeypatch):
    before = list(sys.meta_path)
    logs.hide_tensorflow_logs()  # imported by the tests
    assert sys.meta_path == before
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setenv(logs.SHOW_LOGS, "1")
    monkeypatch.setattr(sys, "meta_path", [])
    logs.hide_tensorflow_logs()
    assert sys.meta_path == []


def test_logs_are_held_back_where_no_file_can_be_made(capfd, monkeypatch, tmp_path):
    def fail():
        with logs.held_back_stderr():
            os.write(2, b"why it failed")
            raise ZeroDivisionError

    with monkeypatch.context() as patch:  # pytest makes such files, too
        patch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        with logs.held_back_stderr():
            os.write(2, b"a library's log")
        with pytest.raises(ZeroDivisionError):
            fail()
    assert capfd.readouterr().err == "why it failed"


def test_packages_of_jax_that_fail_are_answered_before_tensorflow_imports_them(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(environment, "computes_already", lambda: False)
    monkeypatch.setattr(environment, "_import_tensorflow", lambda: pytest.fail("imports JAX, too"))
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ConfigError, match=r"JAX is installed and can't be imported \(ModuleNotFoundError: .*\); mend"):
        Context().run(environment.prepare, CpuConfig(runtime="jax"))


@pytest.fixture
def limits(monkeypatch):
    """Prepare for jobs in a new process, and return the limits that TensorFlow would read."""

    def prepare(own, *limits, computing=False, runtimes=("tensorflow",) * 4):
        computes = iter([False, *[computing] * len(limits)])
        monkeypatch.setattr(environment, "computes_already", lambda: next(computes))
        monkeypatch.setattr(environment, "import_jax", lambda: None)
        monkeypatch.setattr(environment, "_import_tensorflow", lambda: None)
        monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
        limits_of_others = (environment.CPU_LIMIT, environment.USERS_LIMIT)
        variables = {name: value for name, value in os.environ.items() if name not in limits_of_others}
        monkeypatch.setattr(os, "environ", variables | own)
        context, found = Context(), []
        for limit, runtime in zip(limits, runtimes, strict=False):
            context.run(environment.prepare, CpuConfig(memory_limit_mb=limit, runtime=runtime))
            found.append(os.environ.get(environment.CPU_LIMIT))
        return found

    return prepare


OWN = {environment.CPU_LIMIT: "4000"}


def test_a_limit_is_that_of_its_job_until_tensorflow_computes(limits):
    assert limits({}, 300, None, 500) == ["300", None, "500"]
    assert limits(OWN, None, 300, None) == ["4000", "300", "4000"], "without a limit the user's own holds"


def test_a_limit_that_stays_when_tensorflow_computes(limits):
    assert limits({}, None, None, computing=True) == [None, None]
    assert limits({}, 300, 300, computing=True) == ["300", "300"]
    assert limits(OWN, None, None, 4000, computing=True) == ["4000", "4000", "4000"]
    assert limits(OWN, 300, 300, computing=True) == ["300", "300"]


@pytest.mark.parametrize(
    ("own", "before", "now", "shown"),
    [({}, 300, None, "null"), ({}, None, 300, "300"), (OWN, None, 300, "300"), (OWN, 300, None, "null")],
)
def test_a_limit_that_would_change_when_tensorflow_computes(limits, own, before, now, shown):
    refused = rf"device\.memory_limit_mb={shown} device\.runtime=tensorflow: the limit of TensorFlow's allocator can't"
    with pytest.raises(ConfigError, match=refused):
        limits(own, before, now, computing=True)


@pytest.mark.parametrize("own", [{}, OWN])
def test_with_jax_no_memory_is_refused_to_tensorflow_which_would_crash(limits, own):
    assert limits(own, 6, None, runtimes=("jax",) * 2) == [None, None]
    assert limits(own, 6, 300, None, computing=True, runtimes=("jax",) * 3) == [None, None, None]
    assert environment.read_users_limit() == own.get(environment.CPU_LIMIT), "which holds for the compiled programs"


@pytest.mark.parametrize("runtimes", [("jax", "tensorflow"), ("tensorflow", "jax")])
def test_a_limit_of_the_other_runtime_when_tensorflow_computes(limits, runtimes):
    refused = rf"memory_limit_mb=300 device\.runtime={runtimes[1]}: the limit of TensorFlow's allocator can't"
    with pytest.raises(ConfigError, match=refused):
        limits({}, 300, 300, computing=True, runtimes=runtimes)
