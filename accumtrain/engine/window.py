"""One update as a transaction: a window of micro-steps changes only buffers, the commit changes everything else.

Every sum is weighted by example, so a ragged micro-batch or uneven replicas still give the exact mean. The buffers
are ON_READ sums: each replica adds to its own copy, and the commit reduces all buffers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode, micro_mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients
from accumtrain.backprop.tracing import is_for_xla
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import (
    Batch,
    LossScale,
    PerExample,
    WholeBatch,
    accuracy,
    count_examples,
    cross_entropy,
    example_weights,
    loss_and_sums,
    trained_outputs,
)
from accumtrain.engine.noise import MicroGradient, NoiseScale, NoiseSums
from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.engine.replica import current_replica
from accumtrain.engine.sums import Sums, all_finite, make_clear, sum_buffer
from accumtrain.optim.optimizer import Optimizer, apply_one_by_one, clip_by_weight
from accumtrain.optim.schedules import Schedule, constant_schedule


class Window(tf.Module):
    """Buffers of one update, and the two replica functions that fill and commit them.

    Create it inside the strategy's scope; call `accumulate` and `commit` in replica context, inside a tf.function.

    Args:
        model: the model whose trainable variables are updated.
        optimizer: an optimizer that is not built yet; the window calls its `build`.
        micro_steps: number of micro-steps in a window.
        reduction: `mean` makes the update of the mean gradient over the examples; `sum` makes that of the sum of the
            micro-batches' mean gradients.
        loss: (labels [N], logits [N, classes]) -> losses [N], whose mean over the window is minimised; or a
            `WholeBatch`.
        metrics: functions like `loss`; the commit returns the mean of each by its name.
        schedule: int64 update count -> factor on the optimizer's rate; None is 1.
        clip_norm: largest global norm of the gradient; 0 does not clip.
        adaptive_clip: largest ratio of the norm of a unit's gradient to that of its weights (optim/optimizer.py),
            in place of `clip_norm`; 0 does not clip. It takes the memory of a second set of gradients.
        ema: moving average of the weights, or None.
        loss_scale: factor on the loss while gradients are computed, which the commit divides out; or None.
        seed: the run's seed, for layers that draw random numbers.
        sum_dtype: dtype of the buffers; None is that of the variables.
        measures_noise: measure the noise scale of the gradient, before clipping (engine/noise.py).

    Raises:
        ValueError: the model has no trainable variable, micro_steps is below 1, or reduction is not one of these. Or
            the noise of a `WholeBatch` is to be measured, of which a micro-batch has no gradient of its own.
        TypeError: a variable is neither float32 nor float64.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        *,
        micro_steps: int = 1,
        reduction: str = "mean",
        loss: PerExample | WholeBatch = cross_entropy,
        metrics: Mapping[str, PerExample] | None = None,
        schedule: Schedule | None = None,
        clip_norm: float = 0.0,
        adaptive_clip: float = 0.0,
        ema: MovingAverage | None = None,
        loss_scale: LossScale | None = None,
        seed: int = 0,
        sum_dtype: tf.DType | None = None,
        measures_noise: bool = False,
    ):
        super().__init__()
        if micro_steps < 1:
            raise ValueError(f"micro_steps={micro_steps}: a window has at least 1")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r}: must be mean or sum")
        self.model, self.optimizer, self.ema, self.loss_scale = model, optimizer, ema, loss_scale
        self.schedule = schedule or constant_schedule()
        self.clip_norm, self.adaptive_clip, self.seed = clip_norm, adaptive_clip, seed
        self.micro_steps, self.reduction = micro_steps, reduction
        self.loss_function: Any = loss
        self.metrics = dict({"accuracy": accuracy} if metrics is None else metrics)
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
        self.weight, self.examples, self.loss = new_sum([]), new_sum([]), new_sum([])
        self.metric_sums = [new_sum([]) for _ in self.metrics]
        self._stops, self._inexact, self._not_compared, self._out_of_range = (new_sum([]) for _ in range(4))
        # the micro-steps of each replica, never reduced; an int32 would lie on a GPU's host, where XLA can't reach it
        self.micro_step = sum_buffer([], tf.int64)
        self.statistics = NormStatistics(model.norms, new_sum)
        if measures_noise and self.whole_batch:
            raise ValueError("measures_noise: a micro-batch has no gradient of its own under a loss of the whole batch")
        self.noise = NoiseScale() if measures_noise else None
        self._noise_sums = NoiseSums(new_sum([]), new_sum([])) if measures_noise else None
        self._clear_one = make_clear(self.gradients[0].dtype)

    @property
    def whole_batch(self) -> bool:
        """Return whether the loss is of all examples of an update, so that it takes two passes over a window."""
        return isinstance(self.loss_function, WholeBatch)

    @property
    def buffers(self) -> list[tf.Variable]:
        """All variables that a window changes. Checkpoints do not hold them."""
        return [*self.sums, self.micro_step]

    @property
    def sums(self) -> list[tf.Variable]:
        """The buffers whose total over all replicas the commit takes."""
        return tf.nest.flatten(self._sums)

    @property
    def _sums(self) -> Sums:
        return Sums(
            gradients=list(self.gradients),
            weight=self.weight,
            examples=self.examples,
            loss=self.loss,
            metrics=list(self.metric_sums),
            stops=self._stops,
            inexact=self._inexact,
            not_compared=self._not_compared,
            out_of_range=self._out_of_range,
            statistics=list(self.statistics.buffers),
            noise=self._noise_sums or (),
        )

    @property
    def updated_variables(self) -> list[tf.Variable]:
        """The floating-point variables that an update writes: weights, optimizer state, statistics, averages."""
        averages = [] if self.ema is None else self.ema.averages
        state = [*self.variables_, *self.optimizer.state, *self.statistics.variables_, *averages]
        return [variable for variable in state if variable.dtype.is_floating]

    def follow(self, step: int, batch: int, micro_steps: int) -> bool:
        """Let updates be of a batch, and means with a half-life follow it. Return whether all is to be traced again.

        Args:
            step: updates made.
            batch: examples of an update.
            micro_steps: number of micro-steps in a window.
        """
        changed = [micro_steps != self.micro_steps, self.optimizer.follow(step, batch)]
        self.micro_steps = micro_steps
        if self.ema is not None:
            changed.append(self.ema.follow(batch))
        return any(changed)

    # ---- micro-step ----

    def accumulate(self, batch: Batch, at_outputs: Any = None) -> None:
        """Run forward and backward pass of one micro-batch and add its sums to the buffers.

        Args:
            batch: see `Batch` in engine/losses.py.
            at_outputs: the gradient of a `WholeBatch` at what it holds of the trained outputs, from `differentiate`.
        """
        mode = self._mode(batch, defers_logits=at_outputs is None)
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        sums = []

        def loss(outputs: Any) -> tf.Tensor:
            total, found = loss_and_sums([self.loss_function, *self.metrics.values()], outputs, batch, scale)
            sums.extend(found)
            if at_outputs is None:
                return total
            held = trained_outputs(self.loss_function.hold(batch, outputs))
            pairs = zip(held, at_outputs, strict=True)
            return tf.add_n([tf.reduce_sum(output * tf.cast(at, output.dtype)) for output, at in pairs]) * scale

        micro_gradient = None if self._noise_sums is None else MicroGradient()
        tape.gradient(
            self.model, batch["inputs"], loss, mode, partial(self._add_gradients, of_micro_step=micro_gradient)
        )
        with tf.control_dependencies(
            tf.nest.flatten(batch, expand_composites=True)
        ):  # else a batch that can't be read would be counted as a micro-step
            weight = tf.reduce_sum(tf.cast(example_weights(batch), self.dtype))
            examples = tf.cast(count_examples(batch), self.dtype)
            self.micro_step.assign_add(1)
        self.statistics.add(mode.statistics, examples)
        if self._noise_sums is not None and micro_gradient is not None:
            self._noise_sums.add(micro_gradient.square, weight)
        buffers = (self.loss, *self.metric_sums, self.weight, self.examples)
        for buffer, value in zip(buffers, (*sums, weight, examples), strict=True):
            buffer.assign_add(tf.cast(value, buffer.dtype))
        for buffer, findings in (
            (self._inexact, mode.inexact),
            (self._not_compared, mode.not_compared),
            (self._out_of_range, mode.out_of_range),
        ):
            for finding in findings:
                buffer.assign_add(tf.cast(finding, buffer.dtype))

    def compute_outputs(self, batch: Batch) -> Any:
        """Return what a `WholeBatch` holds of a micro-batch, and count it: the next draws other random numbers."""
        outputs = self.model(batch["inputs"], self._mode(batch))
        self.micro_step.assign_add(1)
        return self.loss_function.hold(batch, outputs)

    def differentiate(self, batches: Sequence[Batch], outputs: Sequence[Any]) -> list[list[tf.Tensor]]:
        """Add the loss of the whole batch to its buffer. Return what `accumulate` takes for each micro-batch.

        The gradient of weights that the loss itself reads is added, too. Afterwards no micro-batch is counted, so that
        `accumulate` draws the same random numbers again.

        Args:
            outputs: of each micro-batch, from `compute_outputs`.
        """
        trained = [trained_outputs(each) for each in outputs]
        with tf.GradientTape() as tape:
            tape.watch(trained)
            own_weight, weight, loss = self.loss_function.of_held(batches, outputs)
        at_outputs, at_weights = tape.gradient(loss, (trained, self.variables_))
        own_weight = tf.cast(own_weight, self.dtype)  # the commit divides by the sum of these
        self.loss.assign_add(tf.cast(tf.cast(loss, self.dtype) * own_weight, self.loss.dtype))
        scale = own_weight if self.loss_scale is None else own_weight * self.loss_scale.value
        known = [(variable, at) for variable, at in zip(self.variables_, at_weights, strict=True) if at is not None]
        self._add_gradients([(variable, scale * tf.convert_to_tensor(at)) for variable, at in known])
        self.micro_step.assign(0)
        zeros = [[tf.zeros_like(output) for output in each] for each in trained]
        return [
            [nothing if at is None else at * tf.cast(weight, at.dtype) for at, nothing in zip(*each, strict=True)]
            for each in zip(at_outputs, zeros, strict=True)
        ]

    def _add_gradients(self, gradients: Gradients, of_micro_step: MicroGradient | None = None) -> list[Any]:
        """Add gradients to the buffers. Return what is to be computed before the next ones."""
        added = []
        for variable, gradient in gradients:
            ref = variable.ref()
            if gradient is None or ref not in self._slot:  # a frozen variable has no slot
                continue
            self._reached.add(ref)
            buffer = self._slot[ref]
            # an embedding's gradient, tf.IndexedSlices, becomes dense
            dense = tf.cast(tf.convert_to_tensor(gradient), buffer.dtype)
            if of_micro_step:
                added.append(of_micro_step.add(variable, dense))
            added.append(buffer.assign_add(dense))
        return added

    def _mode(self, batch: Batch, *, defers_logits: bool = False) -> Mode:
        replica, replicas = current_replica()
        index = tf.cast(self.micro_step, tf.int32) * replicas + replica
        return micro_mode(
            self.seed,
            tf.cast(self.step, tf.int32),
            index,
            self.micro_steps * replicas,
            batch,
            defers_logits=defers_logits,
        )

    def ask_to_stop(self, strategy: tf.distribute.Strategy) -> None:
        """Make the next commit return stop=True on all workers. Call it outside replica context."""
        # assign() on the whole variable would read other workers' copies
        for copy in strategy.experimental_local_results(self._stops):
            copy.assign(1.0)

    def clear(self) -> None:
        """Set the buffers to zero. Call it outside replica context."""
        for buffer in self.buffers:
            buffer.assign(tf.zeros(buffer.shape, buffer.dtype))

    # ---- commit ----

    def commit(self) -> dict[str, tf.Tensor]:
        """Make the update of the window in the buffers. If it is not finite, only the loss scale and its count change.

        An update is finite if the loss, the gradient, the batch statistics and the rate are. The state is checked after
        it is written: if it is not finite, it must not be used or saved any more.

        Returns:
            Scalars by name:
            loss and each metric: means over the window.
            grad_norm: of the gradient, before clipping.
            learning_rate, step: step counts the updates done.
            weight, examples: the sum of the weights, by which means are divided, and the number of those above 0.
            finite: the update was made.
            state_finite: weights, optimizer state, moving statistics and averages are finite.
            stop: a worker has asked to stop.
            exact: False if a reversal gave other bits; compared is False if the bits were not compared.
            in_range: False if a stream left the range of its numbers; then the update is not finite.
            noise_scale, gradient_square, gradient_variance: if the noise is measured, see `NoiseScale.read`.
            loss_scale, skipped: with a loss scale, that of this window, and the windows without an update so far.
        """
        sums = self._sums.reduce(self.dtype)
        gradients, weight = sums.gradients, sums.weight
        squares = 2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])  # keeps no squares in memory
        divisor = weight
        if self.loss_scale is not None:
            loss_scale = tf.identity(self.loss_scale.value)
            divisor *= loss_scale
        if self.reduction == "sum":
            divisor /= tf.cast(self.micro_step, self.dtype)
        norm = tf.sqrt(squares) / divisor
        rate = self.rate()
        finite = all_finite([sums.loss, norm, rate, *sums.statistics])
        scale = 1.0 / divisor
        if self.clip_norm > 0:
            scale *= tf.minimum(tf.constant(1.0, self.dtype), self.clip_norm / norm)
        if self.adaptive_clip > 0:
            ratio = self.adaptive_clip * divisor  # of gradients that are not divided yet
            gradients = [clip_by_weight(*pair, ratio) for pair in zip(gradients, self.variables_, strict=True)]
        if self.optimizer.skips_missing:
            gradients = self._none_where_missing(gradients)

        def update() -> None:
            # automatic control dependencies order these lines: each waits for variables that one before it writes
            self.optimizer.apply(gradients, rate, self.step, scale)
            self.statistics.write(sums.statistics, sums.examples)
            if self.ema is not None:
                self.ema.update(self.step)
            self.step.assign_add(1)
            if self.noise:
                unscaled = 1.0 if self.loss_scale is None else tf.cast(loss_scale, self.dtype) ** -2
                self.noise.update(sums.noise, squares, weight, unscaled)
            if self.loss_scale is not None:
                self.loss_scale.after_update()

        def skip() -> None:
            if self.loss_scale is not None:
                self.loss_scale.after_skip(sums.examples)

        tf.cond(finite, update, skip)
        # outside the conditional, so that the graph holds it once; a skipped window has the state from before, which
        # was checked
        state_finite = all_finite(map(tf.convert_to_tensor, self.updated_variables))
        with tf.control_dependencies([state_finite]):  # by then nothing reads the sums any more
            self._clear(finite & all_finite(sums.metrics) if sums.metrics else finite)
        scalars = {
            "step": tf.identity(self.step),
            "loss": sums.loss / weight,
            **{name: total / weight for name, total in zip(self.metrics, sums.metrics, strict=True)},
            "learning_rate": rate,
            "grad_norm": norm,
            "weight": weight,
            "examples": sums.examples,
            "finite": finite,
            "state_finite": state_finite,
            "stop": sums.stops > 0.0,
            "exact": sums.inexact == 0.0,
            "compared": sums.not_compared == 0.0,
            "in_range": sums.out_of_range == 0.0,
        }
        if self.loss_scale is not None:
            scalars |= {"loss_scale": loss_scale, "skipped": tf.identity(self.loss_scale.skipped)}
        if self.noise:
            scalars |= self.noise.read()
        return scalars

    def rate(self) -> tf.Tensor:
        """Return the learning rate of the next update, a scalar in the dtype of the weights."""
        factors = (self.optimizer.learning_rate(self.step), self.schedule(self.step))
        own, factor = (tf.cast(each, self.dtype) for each in factors)
        return own * factor

    def _none_where_missing(self, gradients: list[tf.Tensor]) -> list[tf.Tensor | None]:
        """Return the gradients, with None for a variable on which the loss does not depend."""
        if not self._reached:
            raise RuntimeError("trace a micro-step before the commit: it finds what, if anything, the loss needs")
        pairs = zip(gradients, self.variables_, strict=True)
        return [gradient if variable.ref() in self._reached else None for gradient, variable in pairs]

    def _clear(self, finite: tf.Tensor) -> None:
        """Set the buffers to zero. Finite ones are zeroed in place, so that each update has the same memory layout."""
        buffers = tf.nest.flatten(self._sums)
        if is_for_xla():  # XLA packs memory itself, and would compile a conditional for each buffer for minutes
            for buffer in buffers:
                buffer.assign(tf.zeros(buffer.shape, buffer.dtype))
        else:
            apply_one_by_one(partial(self._clear_one, buffer.handle, finite) for buffer in buffers)
        self.micro_step.assign(0)
