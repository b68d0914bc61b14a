"""Accumulation, Adafactor and reversal for people's own Keras code: optimizers, layers, a step for `fit`, workers."""

from accumtrain.data.sources.builtin import load_digits as load_digits
from accumtrain.keras.accumulate_optimizer import Accumulate as Accumulate
from accumtrain.keras.accumulate_step import accumulate as accumulate
from accumtrain.keras.adafactor import Adafactor as Adafactor
from accumtrain.keras.layers import Recompute as Recompute
from accumtrain.keras.layers import Reversible as Reversible
from accumtrain.keras.layers import ReversibleSequence as ReversibleSequence
from accumtrain.keras.layers import recompute as recompute
from accumtrain.keras.linear_cross_entropy import LinearCrossEntropy as LinearCrossEntropy
from accumtrain.keras.linear_cross_entropy import output_as_loss as output_as_loss
from accumtrain.keras.replicas import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from accumtrain.optim.running_mean import beta_2 as beta_2
