"""What job=memory needs to compare policies: one micro-batch, and a device to measure on."""

from __future__ import annotations

from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.kinds.devices import DEVICES, Device


def check_memory(config: Config) -> None:
    """Raises ConfigError if there is no micro-batch to compare at, or nothing to measure on."""
    if config.accum.is_auto:
        raise ConfigError(
            "accum.steps=auto: job=memory compares at one micro-batch, so give a number; job=plan tries several"
        )
    if DEVICES[config.device.kind].plan != Device.plan:
        raise ConfigError(
            f"device={config.device.kind}: job=memory measures, and this device is only compiled for; use job=plan"
        )
