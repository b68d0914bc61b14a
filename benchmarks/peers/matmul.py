"""What a matrix product reaches on this machine, in turn with the others. Takes the workers' arguments."""

from __future__ import annotations

from turns import Turns, arguments

options = arguments()
turns = Turns(units=1)

from micro_step import tf  # noqa: E402

from accumtrain.measure.flops import matmul_flops_per_second  # noqa: E402

while turns.next():
    turns.done(flops_per_second=matmul_flops_per_second(tf.as_dtype(options.precision)))
