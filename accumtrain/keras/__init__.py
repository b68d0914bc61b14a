"""Accumulation, Adafactor and reversal for Keras code of one's own: optimizers, layers, and a step for `fit`."""

from accumtrain.keras.accumulate import Accumulate as Accumulate
from accumtrain.keras.accumulate_model import accumulate as accumulate
