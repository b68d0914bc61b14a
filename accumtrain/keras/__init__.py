"""Accumulation, Adafactor and reversal for Keras code of one's own: optimizers, layers, a step for `fit`, workers."""

from accumtrain.data.digits import load_digits as load_digits
from accumtrain.keras.accumulate import Accumulate as Accumulate
from accumtrain.keras.accumulate_model import accumulate as accumulate
from accumtrain.keras.keras_adafactor import Adafactor as Adafactor
from accumtrain.keras.recompute import Recompute as Recompute
from accumtrain.keras.recompute import recompute as recompute
from accumtrain.keras.reversible import Reversible as Reversible
from accumtrain.keras.reversible_sequence import ReversibleSequence as ReversibleSequence
from accumtrain.keras.workers import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
