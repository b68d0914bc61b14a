"""device=tpu on a machine without one: an answer within seconds, never a hang or an abort."""

import pytest

from accumtrain.devices.config import TpuConfig
from accumtrain.errors import ConfigError
from accumtrain.process import tpu_runtime


@pytest.fixture
def machine(monkeypatch):
    def with_(library, chips, child=""):
        monkeypatch.setattr(tpu_runtime, "_has_library", lambda: library)
        monkeypatch.setattr(tpu_runtime, "_chips", lambda: chips)
        monkeypatch.setattr(tpu_runtime, "CONNECT", child)

    return with_


@pytest.mark.parametrize(
    ("library", "chips", "child", "message"),
    [
        (False, [], "", "no TPU runtime .*make tpu"),
        (True, [], "", "no TPU chip"),
        (True, ["accel0"], "import os; os.abort()", "TensorFlow crashes with the libtpu"),
        (
            True,
            ["accel0"],
            "raise ValueError('chip 0 is busy')",
            "no TPU answers at device.tpu=local: .*chip 0 is busy",
        ),
    ],
)
def test_what_is_missing_is_named(machine, library, chips, child, message):
    machine(library, chips, child)
    with pytest.raises(ConfigError, match=message):
        tpu_runtime.check(TpuConfig())


def test_an_address_that_does_not_answer(machine, monkeypatch):
    machine(False, [], "import time; time.sleep(60)")
    monkeypatch.setattr(tpu_runtime, "PATIENCE", 0.5)
    with pytest.raises(ConfigError, match=r"device.tpu=my-tpu did not answer within 0.5 s"):
        tpu_runtime.check(TpuConfig(tpu="my-tpu"))


def test_a_tpu_that_is_there(machine):
    machine(True, ["accel0"])
    assert (tpu_runtime.explain_missing_tpu(), tpu_runtime.quiet_environment()) == (None, {})
    tpu_runtime.check(TpuConfig())


@pytest.mark.parametrize(
    ("library", "chips", "address", "message"),
    [
        (False, [], None, r"libtpu\) is not installed; pip install 'accumtrain\[jax-tpu\]', on a Cloud TPU VM"),
        (True, [], None, "device=tpu device.runtime=jax: .* no TPU chip"),
        (True, ["accel0"], "my-tpu", "device.tpu=my-tpu: device.runtime=jax .* leave device.tpu out"),
    ],
)
def test_what_is_missing_for_jax_is_named(machine, library, chips, address, message):
    machine(library, chips)
    with pytest.raises(ConfigError, match=message):
        tpu_runtime.check(TpuConfig(runtime="jax", tpu=address))


def test_jax_on_a_tpu_needs_no_answer_of_tensorflow(machine):
    machine(True, ["accel0"], "raise ValueError('no TPU in this TensorFlow')")
    tpu_runtime.check(TpuConfig(runtime="jax"))


def test_without_a_chip_the_metadata_server_is_not_asked(machine):
    machine(True, [])
    assert tpu_runtime.explain_missing_tpu() is not None
    assert tpu_runtime.quiet_environment() == {"TPU_SKIP_MDS_QUERY": "1"}
