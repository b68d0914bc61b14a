"""From the device's configuration to a tf.distribute strategy; a device that is not there is a clear error."""

from accumtrain.devices.resolve import Devices, resolve

__all__ = ["Devices", "resolve"]
