"""One update as a transaction: a window of micro-steps changes only buffers, the commit changes everything else.

Every sum is weighted by example, so a ragged micro-batch or uneven replicas still give the exact mean. The buffers
are ON_READ sums: each replica adds to its own copy, and the commit reduces all buffers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode, micro_mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients
from accumtrain.backprop.tracing import is_for_xla
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import Batch, LossScale, PerExample, accuracy, cross_entropy, weighted_sums, weights
from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.engine.sums import all_finite, all_reduce_sum
from accumtrain.optim.optimizer import Optimizer, VariableHandle, clip_by_weight, in_sequence
from accumtrain.optim.schedules import Schedule, constant_schedule


def sum_buffer(shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    """A variable of zeros. Each replica adds to its own copy; outside replicas it reads as the sum of all copies."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


class Window(tf.Module):
    """Buffers of one update, and the two replica functions that fill and commit them.

    Create it inside the strategy's scope; call `accumulate` and `commit` in replica context, inside a tf.function.

    Args:
        model: the model whose trainable variables are updated.
        optimizer: an optimizer that is not built yet; the window calls its `build`.
        micro_steps: number of micro-steps in a window.
        reduction: `mean` makes the update of the mean gradient over the examples; `sum` of that times the number of
            micro-steps, the sum of the micro-batches' mean gradients.
        loss: (labels [N], logits [N, classes]) -> losses [N], whose mean over the window is minimised.
        metrics: functions like `loss`; the commit returns the mean of each by its name.
        schedule: int64 update count -> factor on the optimizer's rate; None is 1.
        clip_norm: largest global norm of the gradient; 0 does not clip.
        adaptive_clip: largest ratio of the norm of a unit's gradient to that of its weights (optim/optimizer.py),
            in place of `clip_norm`; 0 does not clip. It takes the memory of a second set of gradients.
        ema: moving average of the weights, or None.
        loss_scale: factor on the loss while gradients are computed, which the commit divides out; or None.
        seed: the run's seed, for layers that draw random numbers.
        sum_dtype: dtype of the buffers; None is that of the variables.

    Raises:
        ValueError: the model has no trainable variable, micro_steps is below 1, or reduction is not one of these.
        TypeError: a variable is neither float32 nor float64.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        *,
        micro_steps: int = 1,
        reduction: str = "mean",
        loss: PerExample = cross_entropy,
        metrics: Mapping[str, PerExample] | None = None,
        schedule: Schedule | None = None,
        clip_norm: float = 0.0,
        adaptive_clip: float = 0.0,
        ema: MovingAverage | None = None,
        loss_scale: LossScale | None = None,
        seed: int = 0,
        sum_dtype: tf.DType | None = None,
    ):
        super().__init__()
        if micro_steps < 1:
            raise ValueError(f"micro_steps={micro_steps}: a window has at least 1")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r} is not one of mean, sum")
        self.model, self.optimizer, self.ema, self.loss_scale = model, optimizer, ema, loss_scale
        self.schedule = schedule or constant_schedule()
        self.clip_norm, self.adaptive_clip, self.seed = clip_norm, adaptive_clip, seed
        self.micro_steps, self.reduction = micro_steps, reduction
        self.loss_function, self.metrics = loss, dict({"accuracy": accuracy} if metrics is None else metrics)
        self.variables_ = list(model.trainable_variables)
        if not self.variables_:
            raise ValueError("the model has no trainable variable: keep its layers as attributes of a tf.Module")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        optimizer.build(self.variables_, model.decayed)
        self.dtype = self.variables_[0].dtype
        new_sum = partial(sum_buffer, dtype=sum_dtype or self.dtype)
        self.gradients = [new_sum(variable.shape) for variable in self.variables_]
        self._reached: set[Any] = set()  # references of the variables that have a gradient in a traced micro-step
        self._slot = {variable.ref(): slot for variable, slot in zip(self.variables_, self.gradients, strict=True)}
        self.examples, self.loss = new_sum([]), new_sum([])
        self.metric_sums = [new_sum([]) for _ in self.metrics]
        self._stops, *self._found = (new_sum([]) for _ in range(4))  # what `Mode` has found of reversals and streams
        # the micro-steps of each replica, never reduced; an int32 would lie on a GPU's host, where XLA can't reach it
        self.micro_step = sum_buffer([], tf.int64)
        self.statistics = NormStatistics(model.norms, new_sum)
        self._clear_sum = make_clear(self.gradients[0].dtype)

    @property
    def buffers(self) -> list[tf.Variable]:
        """All variables that a window changes. Checkpoints do not hold them."""
        return [*self._sums, self.micro_step]

    @property
    def _sums(self) -> list[tf.Variable]:
        scalars = [self.examples, self.loss, *self.metric_sums, self._stops, *self._found]
        return [*self.gradients, *scalars, *self.statistics.buffers]

    @property
    def written(self) -> list[tf.Variable]:
        """The variables of floating point that an update writes: weights, optimizer state, statistics, averages."""
        averages = [] if self.ema is None else self.ema.averages
        state = [*self.variables_, *self.optimizer.state, *self.statistics.variables_, *averages]
        return [variable for variable in state if variable.dtype.is_floating]

    # --- micro-step -----------------------------------------------------------------------------------------------

    def accumulate(self, batch: Batch) -> None:
        """Runs forward and backward pass of one micro-batch and adds its sums to the buffers.

        Args:
            batch: image [N, H, W, C], label [N] of an integer dtype, optional weight [N].
        """
        mode = self._mode(batch)
        sums = []

        def loss(logits: tf.Tensor) -> tf.Tensor:
            sums.extend(weighted_sums([self.loss_function, *self.metrics.values()], logits, batch))
            total = sums[0]
            return total if self.loss_scale is None else total * self.loss_scale.value

        tape.gradient(self.model, batch["image"], loss, mode, self._add_gradients)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):  # or it counts before it fails
            examples = tf.reduce_sum(tf.cast(weights(batch), self.dtype))
            self.micro_step.assign_add(1)
        self.statistics.add(mode.statistics, examples)
        for buffer, value in zip((self.loss, *self.metric_sums, self.examples), (*sums, examples), strict=True):
            buffer.assign_add(tf.cast(value, buffer.dtype))
        for buffer, found in zip(self._found, (mode.inexact, mode.not_compared, mode.out_of_range), strict=True):
            for each in found:
                buffer.assign_add(tf.cast(each, buffer.dtype))

    def _add_gradients(self, gradients: Gradients) -> list[tf.Operation]:
        # of a frozen variable there is no slot
        known = [(ref, each) for v, each in gradients if each is not None and (ref := v.ref()) in self._slot]
        self._reached |= {ref for ref, _ in known}
        pairs = [(self._slot[ref], each) for ref, each in known]
        # an embedding's gradient, tf.IndexedSlices, becomes dense
        return [buffer.assign_add(tf.cast(tf.convert_to_tensor(each), buffer.dtype)) for buffer, each in pairs]

    def _mode(self, batch: Batch) -> Mode:
        """The mode of this micro-step: its random numbers are functions of run, update and place in the window."""
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        place = tf.cast(self.micro_step, tf.int32) * replicas + tf.cast(replica, tf.int32)
        return micro_mode(self.seed, tf.cast(self.step, tf.int32), place, self.micro_steps * replicas, batch)

    def ask_to_stop(self, strategy: tf.distribute.Strategy) -> None:
        """Makes the next commit return stop=True on all workers. Call it outside replica context."""
        for copy in strategy.experimental_local_results(self._stops):  # assign() of the whole would read other workers'
            copy.assign(1.0)

    # --- commit ---------------------------------------------------------------------------------------------------

    def commit(self) -> dict[str, tf.Tensor]:
        """Makes the update of the window in the buffers. If it is not finite, only the loss scale and its count change.

        An update is finite if the loss, the gradient, the batch statistics and the rate are. What the optimizer made of
        them is looked at after it is written: if that is not finite, the state must not be used or saved any more.

        Returns:
            Scalars: loss and each metric (means over the window), grad_norm (of the gradient, before clipping),
            learning_rate, examples, finite (whether the update was made), state_finite (whether weights, optimizer
            state, moving statistics and averages are), step (updates done), stop (whether a worker has asked to stop),
            exact (False if a reversal gave other bits), compared (False if that was not looked at), in_range (False if
            a stream left the range of its numbers; then the update is not finite); with a loss scale also loss_scale
            (of this window) and skipped (number of windows without an update so far).
        """
        reduced = all_reduce_sum([tf.convert_to_tensor(buffer) for buffer in self._sums])
        sums = [tf.cast(total, self.dtype) for total in reduced]
        gradients, sums = sums[: len(self.gradients)], sums[len(self.gradients) :]
        examples, loss, *sums = sums
        metrics, (stops, inexact, unmarked, outside, *statistics) = sums[: len(self.metrics)], sums[len(self.metrics) :]

        squares = 2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])  # keeps no squares in memory
        divisor = examples
        if self.loss_scale is not None:
            loss_scale = tf.identity(self.loss_scale.value)
            divisor *= loss_scale
        if self.reduction == "sum":
            divisor /= tf.cast(self.micro_step, self.dtype)
        norm = tf.sqrt(squares) / divisor
        rate = tf.cast(self.optimizer.learning_rate(self.step) * self.schedule(self.step), tf.float32)
        finite = all_finite([loss, norm, rate, *statistics])
        scale = 1.0 / divisor
        if self.clip_norm > 0:
            scale *= tf.minimum(tf.constant(1.0, self.dtype), self.clip_norm / norm)
        if self.adaptive_clip > 0:
            share = self.adaptive_clip * divisor  # of gradients that are not divided yet
            gradients = [clip_by_weight(*pair, share) for pair in zip(gradients, self.variables_, strict=True)]

        if self.optimizer.skips_missing:
            if not self._reached:
                raise RuntimeError("trace a micro-step before the commit: it finds what, if anything, the loss needs")
            reached = [variable.ref() in self._reached for variable in self.variables_]
            gradients = [each if known else None for each, known in zip(gradients, reached, strict=True)]

        def update() -> None:
            # automatic control dependencies order these lines: each waits for variables that one before it writes
            self.optimizer.apply(gradients, rate, self.step, scale)
            self.statistics.write(statistics, examples)
            if self.ema is not None:
                self.ema.update(self.step)
            self.step.assign_add(1)
            if self.loss_scale is not None:
                self.loss_scale.after_update()

        def skip() -> None:
            if self.loss_scale is not None:
                self.loss_scale.after_skip(examples)

        tf.cond(finite, update, skip)
        # once for both ways, which halves the graph: a state that has become infinite makes all gradients infinite
        state_finite = all_finite(map(tf.convert_to_tensor, self.written))
        with tf.control_dependencies([state_finite]):  # by then nothing reads the sums any more
            self._clear(finite & all_finite(metrics) if metrics else finite)
        scalars = {
            "step": tf.identity(self.step),
            "loss": loss / examples,
            **{name: total / examples for name, total in zip(self.metrics, metrics, strict=True)},
            "learning_rate": rate,
            "grad_norm": norm,
            "examples": examples,
            "finite": finite,
            "state_finite": state_finite,
            "stop": stops > 0.0,
            "exact": inexact == 0.0,
            "compared": unmarked == 0.0,
            "in_range": outside == 0.0,
        }
        if self.loss_scale is not None:
            scalars |= {"loss_scale": loss_scale, "skipped": tf.identity(self.loss_scale.skipped)}
        return scalars

    def _clear(self, finite: tf.Tensor) -> None:
        """Sets the buffers to zero. Finite ones are zeroed in place, so that each update has the same memory layout."""
        if is_for_xla():  # XLA packs memory itself, and would compile a conditional for each buffer for minutes
            for buffer in self._sums:
                buffer.assign(tf.zeros(buffer.shape, buffer.dtype))
        else:
            in_sequence(partial(self._clear_sum, buffer.handle, finite) for buffer in self._sums)
        self.micro_step.assign(0)


def make_clear(dtype: tf.DType) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function (handle, finite) that sets a buffer to zero. A graph holds it once, for all shapes."""

    @partial(
        tf.function,
        autograph=False,
        input_signature=[tf.TensorSpec([], tf.resource), tf.TensorSpec([], tf.bool)],
        experimental_attributes={"_noinline": True},
    )
    def clear(handle: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        buffer = VariableHandle(handle, None, dtype)

        def subtract_itself() -> tf.Tensor:
            buffer.assign_sub(buffer.read() * tf.ones((), dtype))  # times 1 makes a copy, as the buffer itself changes
            return finite

        def overwrite() -> tf.Tensor:
            buffer.assign(tf.zeros_like(buffer.read()))
            return finite

        return tf.cond(finite, subtract_itself, overwrite)

    return clear
