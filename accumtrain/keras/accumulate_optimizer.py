"""`Accumulate`: a Keras optimizer that wraps another, and makes one update of a window of micro-batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.engine.sums import all_reduce_sum
from accumtrain.keras.replicas import already_reduced, run_on_all_replicas
from accumtrain.optim.optimizer import clip_by_weight

# Keras's base class sets them on each optimizer. Here they are the wrapped optimizer's.
INNER_ATTRIBUTES = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"),
    *("use_ema", "ema_momentum", "ema_overwrite_frequency", "gradient_accumulation_steps"),
)
DIVISIONS = ("RealDiv", "DivNoNan", "Div")
VALUE_FREE_OPS = ("Shape", "ShapeN", "Size", "Rank", "ReadVariableOp")  # they depend on no value of an example


@keras.saving.register_keras_serializable(package="accumtrain")
class Accumulate(keras.optimizers.LossScaleOptimizer):
    """An optimizer around another one, which makes one update of every `steps` micro-batches.

    Each micro-batch counts alike. If masks or weights leave them different numbers of values, that is not the gradient
    of the whole batch, and a warning says so. `accumulate(model, steps)` weights them correctly.

    A micro-batch only adds its gradients to buffers. With the last one of a window the wrapped optimizer makes its
    update. So schedules, averages, weight decay, clipping and constraints act once per update, and `iterations` counts
    updates. Replicas add up on their own; an update reduces all buffers in one collective operation. The buffers are
    saved with the model, so an open window survives. Attributes of the wrapped optimizer can be read and set here.

    A loss scale is used if the optimizer is a LossScaleOptimizer, or the dtype policy mixed_float16 when this object is
    made or built. A window that overflows makes no update and halves the scale.

    Args:
        optimizer: any `keras.optimizers.Optimizer`, or the name of one.
        steps: number of micro-batches in a window.
        reduction: `mean` makes the update of the mean gradient of the micro-batches, each of which counts alike; `sum`
            that of their sum.
        at_end: what `fit` does at its end with a window that is not full. `keep` warns, and the next `fit` goes on with
            it; `flush` makes the update with the micro-batches that there are.
        adaptive_clip: the largest ratio of the norm of a unit's gradient to that of its weights (Brock et al. 2021,
            arXiv:2102.06171); 0 does not clip. It comes before the wrapped optimizer's own clipping.
        name: name of this optimizer.

    Raises:
        ValueError: a value is not one of those above, or the optimizer accumulates already.
    """

    built: bool

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer | str,
        steps: int,
        reduction: str = "mean",
        *,
        at_end: str = "keep",
        adaptive_clip: float = 0.0,
        name: str | None = None,
    ) -> None:
        inner = keras.optimizers.get(optimizer)
        _check_arguments(steps, reduction, at_end, adaptive_clip)
        if accumulates(inner):
            raise ValueError(f"{inner.name} accumulates already: leave that out, and give steps to Accumulate")
        scaled, scale = needs_loss_scale(inner), {}
        if isinstance(inner, keras.optimizers.LossScaleOptimizer):
            scaled = True
            scale = {"initial_scale": inner.initial_scale, "dynamic_growth_steps": inner.dynamic_growth_steps}
            inner = inner.inner_optimizer
        fixed_scale = inner.loss_scale_factor
        super().__init__(inner, name=name, **scale)
        inner.loss_scale_factor = fixed_scale  # the base class has removed it
        for attribute in INNER_ATTRIBUTES:
            self.__dict__.pop(attribute)
        self.steps, self.reduction, self.at_end, self.adaptive_clip = int(steps), reduction, at_end, adaptive_clip
        self._scaled = scaled
        self._indices: tuple[int, ...] | None = None  # of variables with a gradient; None before a micro-batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "inner_optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self.inner_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        if own or "inner_optimizer" not in vars(self) or not hasattr(self.inner_optimizer, name):
            super().__setattr__(name, value)
        else:
            setattr(self.inner_optimizer, name, value)

    def build(self, var_list: Sequence[keras.Variable]) -> None:
        """Create a buffer for each variable, and the state of the wrapped optimizer.

        Raises:
            ValueError: a variable takes its gradient as its new value, as those of float8 layers do.
        """
        if self.built:
            return
        check_summable(var_list)
        self.micro_step = self._new_scalar("int64", 0, "micro_step", aggregation="only_first_replica")
        self._scaled = self._scaled or needs_loss_scale(self.inner_optimizer)
        if self._scaled:
            self.step_counter = self._new_scalar("int64", 0, "step_counter")
            self.dynamic_scale = self._new_scalar("float32", self.initial_scale, "dynamic_scale")
        self.buffers = [new_buffer(variable) for variable in var_list]
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(list(var_list))
        self.built = True

    def _new_scalar(self, dtype: str, value: float, name: str, aggregation: str = "none") -> keras.Variable:
        return self.add_variable((), keras.initializers.Constant(value), dtype, aggregation, name=name)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Exclude variables from the decay of the wrapped optimizer, as Keras's own does. Call it before `build`."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    @property
    def iterations(self) -> keras.Variable:
        """Number of updates, an int64 scalar."""
        return self.inner_optimizer.iterations

    # --- micro-batch --------------------------------------------------------------------------------------------------

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss times the loss scale, if there is one. Warn where masks divide it.

        Raises:
            ValueError: the model computes in float16, and there is none.
        """
        if self.reduction == "mean":
            warn_of_unequal_micro_batches(loss)
        if self._scaled:
            return super().scale_loss(loss)
        if self.loss_scale_factor is None:
            check_no_float16(loss)
        return self.inner_optimizer.scale_loss(loss)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, keras.Variable]]) -> keras.Variable:
        """Do as `apply`. Return the number of updates."""
        self.apply(*map(list, zip(*grads_and_vars, strict=True)))
        return self.iterations

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Add the gradients of a micro-batch to the window, and make the update if the window is full.

        Args:
            grads: for each variable a tensor, tf.IndexedSlices or None.
            trainable_variables: variables this optimizer was built with; None is all of them, in that order.

        Raises:
            ValueError: no variable has a gradient, other variables have one than in the micro-batches before, or
                there are no variables yet.
        """
        if not self.built:
            if not trainable_variables:
                raise ValueError(f"{self.name} has no variables yet: give apply the trainable_variables")
            self.build(list(trainable_variables))
        if trainable_variables is None:
            trainable_variables = self.inner_optimizer._trainable_variables
        given = [
            (self.inner_optimizer._get_variable_index(variable), gradient)
            for variable, gradient in zip(trainable_variables, grads, strict=True)
            if gradient is not None
        ]
        indices = tuple(index for index, _ in given)
        check_indices(indices, self._indices)
        self._indices = indices
        for index, gradient in given:
            add_to_buffer(self.buffers[index], gradient)
        self.micro_step.assign_add(1)
        run_on_all_replicas(self._commit_if_full)

    def _commit_if_full(self, run: Callable[..., Any]) -> None:
        tf.cond(tf.convert_to_tensor(self.micro_step.value) >= self.steps, lambda: self._commit(run), lambda: None)

    def flush(self) -> int:
        """Make the update of a window that is not full. Call it between calls of `fit`, or in a callback.

        Returns:
            The number of its micro-batches; without any, nothing is done.
        """
        return self._end_window(self._commit)

    def drop(self) -> int:
        """Leave out the micro-batches of a window that is not full. Return their number. Call it as `flush`."""
        return self._end_window(lambda run: run(self._clear))

    def _end_window(self, end: Callable[[Callable[..., Any]], None]) -> int:
        if micro_steps := self._micro_steps_taken():
            strategy = self._distribution_strategy
            with strategy.scope():
                end(strategy.extended.call_for_each_replica)
        return micro_steps

    def _micro_steps_taken(self) -> int:
        return int(self.micro_step.numpy()) if self.built else 0

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """End a window that is not full as `at_end` says, and the training of the wrapped optimizer."""
        if self.at_end == "flush":
            self.flush()
        elif micro_steps := self._micro_steps_taken():
            warnings.warn(
                f"{micro_steps} of the {self.steps} micro-batches of an update wait for the next fit. "
                'flush() makes the update with them, at_end="flush" at the end of each fit; drop() leaves them out.',
                stacklevel=2,
            )
        super().finalize_variable_values(var_list)

    @tf.autograph.experimental.do_not_convert
    def _commit(self, run: Callable[..., Any]) -> None:
        """Make the update, or none after an overflow, and clear the window.

        Args:
            run: `run(function, args=())` runs a function on all replicas.
        """
        sums = run(self._reduce)
        with already_reduced(self.inner_optimizer):
            if self._scaled:
                finite = run(self.check_finite, args=(sums,))  # the same everywhere
                (finite, *_) = tf.distribute.get_strategy().experimental_local_results(finite)
                tf.cond(finite, lambda: run(self._update, args=(sums,)), self._stateful_handle_non_finite_grads)
            else:
                run(self._update, args=(sums,))
        run(self._clear)

    def _reduce(self) -> list[tf.Tensor]:
        return all_reduce_sum([tf.convert_to_tensor(self.buffers[index].value) for index in self._filled])

    def _update(self, sums: Sequence[tf.Tensor]) -> None:
        variables = [self.inner_optimizer._trainable_variables[index] for index in self._filled]
        count = self.micro_step if self.reduction == "mean" else 1
        means = [total / tf.cast(count, total.dtype) for total in sums]
        gradients = [tf.cast(mean, variable.dtype) for mean, variable in zip(means, variables, strict=True)]
        if self.adaptive_clip:
            scale = self.dynamic_scale if self._scaled else self.loss_scale_factor or 1.0
            limit = self.adaptive_clip * scale
            gradients = [clip_by_weight(*pair, limit) for pair in zip(gradients, variables, strict=True)]
        if self._scaled:
            self._stateful_handle_finite_grads(gradients, variables)
        else:
            self.inner_optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _clear(self) -> None:
        for index in self._filled:
            buffer = self.buffers[index]
            buffer.value.assign(tf.zeros(buffer.shape, buffer.dtype))
        self.micro_step.assign(0)

    @property
    def _filled(self) -> Sequence[int]:
        """Indices of the variables with a gradient in the window. A window from a file may hold those of all."""
        return range(len(self.buffers)) if self._indices is None else self._indices

    def get_config(self) -> dict[str, Any]:
        inner = self.inner_optimizer
        if self._scaled:
            inner = keras.optimizers.LossScaleOptimizer(inner, self.initial_scale, self.dynamic_growth_steps)
        return {
            "optimizer": keras.saving.serialize_keras_object(inner),
            "steps": self.steps,
            "reduction": self.reduction,
            "at_end": self.at_end,
            "adaptive_clip": float(self.adaptive_clip),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Accumulate:
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects)
        return cls(**{**config, "optimizer": optimizer})

    def save_own_variables(self, store: Any) -> None:
        """Write the state to a file, for Keras. Buffers are written only while a window is open."""
        for name, variable in self._state(self._micro_steps_taken() > 0).items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Read the state from a file, for Keras. As Keras's own, warn and leave out the state of another optimizer.

        Args:
            store: names and arrays of the file; without any, the saved optimizer was not built.
        """
        variables = self._state("sum_0" in store)
        if not store.keys():
            return
        if set(store.keys()) != set(variables):
            warnings.warn(
                f"Skipping variable loading for optimizer '{self.name}': the file has {len(store.keys())} variables of "
                f"another optimizer, of other weights or of a loss scale, where it has {len(variables)}. The weights "
                "of the model are loaded.",
                stacklevel=2,
            )
            return
        for name, variable in variables.items():
            variable.assign(store[name])

    def _state(self, window_is_open: bool) -> dict[str, keras.Variable]:
        """The variables that a file has; none before `build`."""
        scalars = ("micro_step", "step_counter", "dynamic_scale") if self._scaled else ("micro_step",)
        buffers = self.buffers if self.built and window_is_open else ()
        state = {name: getattr(self, name) for name in scalars if self.built}
        return state | {f"sum_{index}": buffer for index, buffer in enumerate(buffers)}


def accumulates(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether an optimizer, or the one within its loss scale, accumulates by itself."""
    if isinstance(optimizer, Accumulate) or optimizer.gradient_accumulation_steps:
        return True
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and accumulates(optimizer.inner_optimizer)


# --- checks -----------------------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of Python or NumPy, 1 or more."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _check_arguments(steps: Any, reduction: Any, at_end: Any, adaptive_clip: Any) -> None:
    if not is_count(steps):
        raise ValueError(f"steps={steps!r}: must be a whole number of micro-batches, 1 or more")
    for name, value, choices in (("reduction", reduction, ("mean", "sum")), ("at_end", at_end, ("keep", "flush"))):
        if value not in choices:
            raise ValueError(f"{name}={value!r}: must be {' or '.join(choices)}")
    if not isinstance(adaptive_clip, int | float | np.number) or not 0.0 <= adaptive_clip < float("inf"):
        raise ValueError(f"adaptive_clip={adaptive_clip!r}: must be a finite number, 0 or more")


def check_summable(variables: Sequence[keras.Variable]) -> None:
    """Raise ValueError if a variable takes its gradient as its new value, as those of float8 layers do."""
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(f"{variable.path} is replaced by its gradient (float8), which can't be accumulated")


def check_indices(indices: Sequence[int], before: Sequence[int] | None = None) -> None:
    """Raise ValueError if no variable has a gradient, or others than in the micro-batches before."""
    if not indices:
        raise ValueError("no variable has a gradient: the loss does not depend on the trainable variables")
    if before not in (None, indices):
        raise ValueError("other variables have gradients than before: use one Accumulate for each group of variables")


# --- sums of gradients: buffers with a copy on each replica, and tensors within a step --------------------------------


def name_of(variable: keras.Variable | tf.Variable) -> str:
    """Return a name for what belongs to a variable of Keras or TensorFlow."""
    return getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")


def sum_dtype(dtype: tf.DType) -> tf.DType:
    """Return the dtype of sums of gradients: `dtype`, or float32 where that is half precision."""
    return dtype if dtype.size >= 4 else tf.float32


def add_gradient(total: tf.Tensor, gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor:
    """Return the sum. Of an embedding's gradient only the rows that were looked up are added."""
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.cast(gradient.values, total.dtype)
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], rows)
    return total + tf.cast(gradient, total.dtype)


def new_buffer(variable: keras.Variable | tf.Variable) -> keras.Variable:
    """Return a buffer for the gradients of a variable. A file holds the sum over all replicas."""
    return keras.Variable(
        "zeros",
        shape=variable.shape,
        dtype=sum_dtype(tf.as_dtype(variable.dtype)).name,
        trainable=False,
        aggregation="sum",
        synchronization="on_read",
        name=f"{name_of(variable)}_sum",
    )


def add_to_buffer(buffer: keras.Variable, gradient: tf.Tensor | tf.IndexedSlices) -> None:
    """Add a gradient to the buffer of this replica. Of an embedding only the rows that were looked up are added."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.cast(gradient.values, buffer.dtype)
        tf.raw_ops.ResourceScatterAdd(resource=buffer.value.handle, indices=gradient.indices, updates=rows)
    else:
        buffer.value.assign_add(tf.cast(gradient, buffer.dtype))


# --- the loss scale: float16 rounds small gradients to 0 without one --------------------------------------------------


def needs_loss_scale(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether Keras would scale the loss: the policy is mixed_float16, and the optimizer has no fixed scale."""
    return keras.config.dtype_policy().name == "mixed_float16" and optimizer.loss_scale_factor is None


def check_no_float16(loss: tf.Tensor) -> None:
    """Raise ValueError if the graph of a loss has a tensor of float16. An eager one has no graph to look at."""
    operations = () if tf.executing_eagerly() else loss.graph.get_operations()
    if any(output.dtype == tf.float16 for operation in operations for output in operation.outputs):
        raise ValueError(
            "the model computes in float16, but the dtype policy was another when Accumulate was made: wrap a loss "
            "scale, Accumulate(keras.optimizers.LossScaleOptimizer(optimizer), steps)"
        )


# --- divisors of a loss in its graph ----------------------------------------------------------------------------------


def warn_of_unequal_micro_batches(loss: tf.Tensor) -> None:
    """Warn if a number that depends on values of the examples divides a loss. An eager one has no graph to look at."""
    if not tf.executing_eagerly() and _is_divided_by_values(loss):
        warnings.warn(
            "the loss is divided by a number that depends on the examples, as masks and the reduction "
            "mean_with_sample_weight do, and Accumulate counts each micro-batch alike: use "
            "accumtrain.keras.accumulate(model, steps), which weighs them, and fit with the whole batch",
            stacklevel=3,
        )


def _is_divided_by_values(loss: tf.Tensor) -> bool:
    divisions = [op for op in _ancestors([loss.op]) if op.type in DIVISIONS and op.inputs[1].shape.rank == 0]
    sources = _ancestors([op.inputs[1].op for op in divisions], leaves=VALUE_FREE_OPS)
    return any(op.type == "Placeholder" and op.outputs[0].dtype != tf.resource for op in sources)


def _ancestors(ops: Sequence[tf.Operation], leaves: Sequence[str] = ()) -> Iterable[tf.Operation]:
    """Yield operations and all that their results come from. Inputs of the types `leaves` are not followed."""
    waiting, seen = list(ops), set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            yield op
            waiting += [] if op.type in leaves else [tensor.op for tensor in op.inputs]
