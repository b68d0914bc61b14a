"""Devices of JAX that are not there."""

import pytest

from accumtrain.devices.config import GpuConfig, TpuConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError

jax = pytest.importorskip("jax")


@pytest.mark.parametrize(("kind", "extra"), [(GpuConfig, "jax-cuda13"), (TpuConfig, "jax-tpu")])
def test_what_to_install_is_named(kind, extra, monkeypatch):
    asked = []

    def devices(platform):
        asked.append(platform)
        raise RuntimeError("no such backend")

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(ConfigError, match=rf"finds none \(no such backend\); pip install 'accumtrain\[{extra}\]', or"):
        resolve_devices(kind(runtime="jax"))
    assert asked == [kind.kind]
