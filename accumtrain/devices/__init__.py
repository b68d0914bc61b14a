"""From the configuration of a device to a tf.distribute strategy. A device that is not there is a ConfigError."""
