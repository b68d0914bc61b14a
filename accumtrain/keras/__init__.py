"""Accumulation, Adafactor and reversal for Keras code of one's own: optimizers, layers, a step for `fit`, workers."""

from accumtrain.data.digits import load_digits as load_digits
from accumtrain.keras.accumulate_optimizer import Accumulate as Accumulate
from accumtrain.keras.accumulate_step import accumulate as accumulate
from accumtrain.keras.adafactor import Adafactor as Adafactor
from accumtrain.keras.recompute import Recompute as Recompute
from accumtrain.keras.recompute import recompute as recompute
from accumtrain.keras.replicas import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from accumtrain.keras.reversible import Reversible as Reversible
from accumtrain.keras.reversible import ReversibleSequence as ReversibleSequence
