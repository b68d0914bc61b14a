"""From the device's configuration to a tf.distribute strategy; a device that is not there is a clear error."""
