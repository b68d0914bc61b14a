"""The configuration of a device, and its tf.distribute strategy. A device that is missing is a ConfigError."""
