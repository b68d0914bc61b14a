"""Accumulation, Adafactor and reversal for Keras code of one's own: optimizers, layers and a training step for `fit`."""
