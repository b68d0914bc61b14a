"""Adafactor as a Keras optimizer, by the rule of `optim=adafactor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from accumtrain.keras.accumulate_optimizer import name_of
from accumtrain.optim.adafactor import AdafactorRule
from accumtrain.optim.config import AdafactorConfig, check_arguments
from accumtrain.optim.optimizer import PerShapeFunction

PRESETS = ("paper", "optax", "huggingface", "bojone")


@keras.saving.register_keras_serializable(package="accumtrain")
class Adafactor(keras.optimizers.Optimizer):
    """Adafactor (Shazeer & Stern 2018, arXiv:1804.04235): a second moment of n + m values for an n x m matrix.

    The rule is that of `optim=adafactor`. `accumtrain.AdafactorConfig` says what `decay_exponent` and all arguments
    after it do. Weights are float32 or float64, slots have their dtype, and sparse gradients are made dense.

    Args:
        learning_rate: a float, a schedule or a callable; None is the relative step of the paper,
            min(1e-2, 1 / sqrt(t)), times `unscaled_relative_step` without `scale_parameter`.
        weight_decay: decoupled, of all weights but those of `exclude_from_weight_decay`: as Keras has it,
            w -= rate * weight_decay * w, or as `weight_decay_factor` says.
        kwargs: the other arguments of `keras.optimizers.Optimizer`: `clipnorm`, `global_clipnorm`, `clipvalue`,
            `use_ema`, `gradient_accumulation_steps`, `name` and so on.

    Raises:
        ValueError: a value is out of its range.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], Any] | None = None,
        *,
        weight_decay: float | None = None,
        decay_exponent: float = 0.8,
        beta2: float | None = None,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        clip_threshold: float | None = 1.0,
        scale_parameter: bool = True,
        unscaled_relative_step: float = 0.05,
        warmup_init: bool = False,
        min_dim_size_to_factor: int = 2,
        factored_axes: str = "last",
        momentum: float = 0.0,
        momentum_of: str = "change",
        weight_decay_factor: str = "rate",
        **kwargs: Any,
    ) -> None:
        if weight_decay is not None:
            check_arguments(AdafactorConfig, {"weight_decay": weight_decay})
        rate = self._relative_step if learning_rate is None else learning_rate
        super().__init__(learning_rate=rate, weight_decay=weight_decay, **kwargs)
        self._rule = AdafactorRule(
            learning_rate,
            decay_exponent=decay_exponent,
            beta2=beta2,
            epsilon1=epsilon1,
            epsilon2=epsilon2,
            clip_threshold=clip_threshold,
            scale_parameter=scale_parameter,
            unscaled_relative_step=unscaled_relative_step,
            warmup_init=warmup_init,
            min_dim_size_to_factor=min_dim_size_to_factor,
            factored_axes=factored_axes,
            momentum=momentum,
            momentum_of=momentum_of,
            weight_decay_factor=weight_decay_factor,
        )
        self._change_one = PerShapeFunction(self._rule.update)

    @classmethod
    def from_preset(cls, preset: str, **arguments: Any) -> Adafactor:
        """Return the rule as it is elsewhere: `paper`, `optax`, `huggingface` or `bojone`. `arguments` go first.

        Raises:
            ValueError: there is no such preset.
        """
        if preset not in PRESETS:
            raise ValueError(f"preset={preset!r}: no such preset; choose from {', '.join(PRESETS)}")
        return cls(**{**read_preset(preset), **arguments})

    @property
    def learning_rate(self) -> Any:
        """The rate of the next update."""
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        """Set the rate. Raise TypeError if it is a number, and the optimizer has no variable for one."""
        schedule = keras.optimizers.schedules.LearningRateSchedule
        if callable(self._learning_rate) and not isinstance(self._learning_rate, schedule) and not callable(rate):
            raise TypeError(
                f"learning_rate={rate!r}: this Adafactor was made with the relative step or a callable, and has no "
                f"variable for a rate; make it with a number, Adafactor({rate!r}), to be able to set another"
            )
        keras.optimizers.Optimizer.learning_rate.fset(self, rate)

    def build(self, variables: Sequence[keras.Variable | tf.Variable]) -> None:
        """Create the slots, in the dtype of their variable.

        Raises:
            ValueError: a variable is neither float32 nor float64.
        """
        if self.built:
            return
        super().build(variables)
        self._slots = [self._new_slots(variable) for variable in variables]

    def _new_slots(self, variable: keras.Variable | tf.Variable) -> dict[str, keras.Variable]:
        if self._overwrite_variable_with_gradient(variable):  # those of float8 layers, which Keras itself updates
            return {}
        dtype = tf.as_dtype(variable.dtype).name
        if dtype not in ("float32", "float64"):
            raise ValueError(f"{variable.name} is {dtype}; keep float32 weights, as the dtype policies mixed_* do")
        of_tensorflow = variable.value if isinstance(variable, keras.Variable) else variable
        with self._distribution_strategy.extended.colocate_vars_with(of_tensorflow):
            return {
                name: self.add_variable(tuple(shape), dtype=dtype, name=f"{name_of(variable)}_{name}")
                for name, shape in self._rule.slot_shapes(tuple(variable.shape)).items()
            }

    def update_step(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable, learning_rate: Any) -> None:
        """Update a variable and its slots. Keras calls it once for each of them."""
        dtype = variable.dtype
        t = tf.cast(tf.convert_to_tensor(self.iterations) + 1, dtype)
        slots = self._slots[self._get_variable_index(variable)]
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        gradient.set_shape(variable.shape)  # of indexed slices inside a conditional it is unknown
        self._change_one(
            {"weight": variable, **{name: slot.value for name, slot in slots.items()}},
            gradient,
            self._rule.scalars(tf.cast(learning_rate, dtype), t),
            float(self.weight_decay or 0.0) if self._use_weight_decay(variable) else 0.0,
        )

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        """Do nothing. The rule decays in `update_step`, where it knows the size of the weight."""

    def _relative_step(self) -> tf.Tensor:
        dtypes = [tf.as_dtype(variable.dtype) for variable in self._trainable_variables[:1]]  # none before `build`
        return self._rule.relative_step(tf.convert_to_tensor(self.iterations), *dtypes)

    def get_config(self) -> dict[str, Any]:
        config = {**self._rule.options, **super().get_config()}
        own = getattr(self._learning_rate, "__func__", None) is Adafactor._relative_step
        return {**config, "learning_rate": None} if own else config


def read_preset(preset: str) -> dict[str, Any]:
    """Return the arguments of a preset, those of `optim=adafactor_<preset>`, that are not the defaults of the class."""
    from omegaconf import OmegaConf  # here, as Keras code without a preset has no use for configurations

    from accumtrain.config.keys import CONF_DIR

    keys: Any = OmegaConf.to_container(OmegaConf.load(CONF_DIR / "optim" / f"adafactor_{preset}.yaml"))
    return {"learning_rate" if key == "lr" else key: value for key, value in keys.items() if key != "defaults"}
