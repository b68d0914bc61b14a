"""JAX that can't be used, and devices of JAX that are not there."""

import sys

import pytest

from accumtrain.devices.config import AutoConfig, CpuConfig, GpuConfig, MirroredConfig, TpuConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError
from accumtrain.process.jax_packages import BY_JAX, check_xla_flags

jax = pytest.importorskip("jax")


@pytest.fixture(params=[None, "cpu", "cuda"])
def platforms(request):
    """The platforms that JAX may compute on."""
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", request.param)
    yield request.param
    jax.config.update("jax_platforms", before)


@pytest.mark.parametrize(("kind", "extra"), [(GpuConfig, "jax-cuda13"), (TpuConfig, "jax-tpu")])
def test_a_missing_device_is_answered_with_its_remedy(kind, extra, platforms, monkeypatch):
    asked = []

    def devices(platform):
        asked.append(platform)
        raise RuntimeError("no such backend")

    monkeypatch.setattr(jax, "devices", devices)
    unset = r"unset JAX_PLATFORMS=cuda, " if platforms == "cuda" else ""
    install = rf"finds none \(no such backend\); {unset}pip install 'accumtrain\[{extra}\]', or choose device=cpu"
    with pytest.raises(ConfigError, match="unset the variable" if platforms == "cpu" else install):
        resolve_devices(kind(runtime="jax"))
    assert asked == [kind.kind]


@pytest.mark.parametrize("platforms", ["cuda"], indirect=True)
def test_platforms_of_which_none_is_there_are_answered(platforms, monkeypatch):
    def devices(platform):
        raise AssertionError  # of JAX 0.10

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(ConfigError, match=r"finds none \(AssertionError\); unset JAX_PLATFORMS=cuda, pip install"):
        resolve_devices(AutoConfig(runtime="jax"))


@pytest.mark.parametrize("platforms", ["cuda"], indirect=True)
def test_without_gpus_replicas_on_the_cpu_are_offered(platforms, monkeypatch):
    def devices(platform):
        raise RuntimeError("no such backend")

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(ConfigError, match=r", or try replication on this CPU with device.virtual=2$"):
        resolve_devices(MirroredConfig(runtime="jax"))
    with pytest.raises(ConfigError, match=r", or choose device=cpu$"):
        resolve_devices(GpuConfig(runtime="jax"))


def test_packages_that_can_not_be_imported_are_answered(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ConfigError, match=r"can't be imported \(ModuleNotFoundError: .*\); mend that, or install it"):
        resolve_devices(CpuConfig(runtime="jax"))


@pytest.mark.parametrize("setting", ["jax_disable_jit", "jax_debug_nans", "jax_debug_infs"])
def test_settings_with_which_a_run_would_fail_are_refused(setting):
    jax.config.update(setting, True)
    try:
        with pytest.raises(ConfigError, match=rf"^{setting.upper()} is set: JAX then .*; unset it"):
            resolve_devices(CpuConfig(runtime="jax"))
    finally:
        jax.config.update(setting, False)


def test_flags_that_xla_does_not_know_are_refused(monkeypatch):
    check_xla_flags("import os; os.abort()")
    monkeypatch.setenv("XLA_FLAGS", "--nonsense")
    with pytest.raises(ConfigError) as caught:
        check_xla_flags(BY_JAX)
    refused = "XLA_FLAGS=--nonsense: XLA refuses it (Unknown flag in XLA_FLAGS: --nonsense); unset it, or correct it"
    assert str(caught.value) == refused
    check_xla_flags("")


def test_a_folder_for_programs_that_can_not_be_used_is_a_warning(monkeypatch, tmp_path, capsys):
    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "file").touch()
    try:
        for folder, kept in ((tmp_path / "new", str(tmp_path / "new")), (tmp_path / "file", None)):
            monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
            resolve_devices(CpuConfig(runtime="jax"))
            assert jax.config.jax_compilation_cache_dir == kept
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: compiled programs are not kept: ")
    assert warning.endswith(f"'{tmp_path / 'file'}'; JAX_COMPILATION_CACHE_DIR names another folder")
