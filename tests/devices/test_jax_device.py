"""Devices of JAX that are not there."""

import pytest

from accumtrain.devices.config import GpuConfig, TpuConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError

jax = pytest.importorskip("jax")


@pytest.fixture(params=[None, "cpu"])
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
    install = rf"finds none \(no such backend\); pip install 'accumtrain\[{extra}\]', or"
    with pytest.raises(ConfigError, match="unset the variable" if platforms == "cpu" else install):
        resolve_devices(kind(runtime="jax"))
    assert asked == [kind.kind]
