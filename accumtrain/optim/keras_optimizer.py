"""Any optimizer of keras.optimizers behind accumtrain's interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.fields import suggest_names
from accumtrain.optim.optimizer import Optimizer, Parameter, PerShapeFunction, apply_one_by_one

# Arguments of Keras's optimizers that accumtrain replaces, each with its remedy.
_INSTEAD = {
    "learning_rate": "set optim.lr and the schedule group",
    "weight_decay": "set optim.weight_decay, which spares biases and normalisation",
    "adam_weight_decay": "set optim.weight_decay, which spares biases and normalisation",
    "clipnorm": "set optim.clip_norm, the norm over all gradients",
    "global_clipnorm": "set optim.clip_norm, the norm over all gradients",
    "clipvalue": "set optim.clip_norm, the norm over all gradients",
    "use_ema": "set ema.decay",
    "ema_momentum": "set ema.decay",
    "ema_overwrite_frequency": "set ema.decay",
    "gradient_accumulation_steps": "set accum.steps",
    "loss_scale_factor": "leave it out, gradients arrive unscaled",
}
_NOT_UPDATE_RULES = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
# Python 3.10 has Keras 3.12, whose Muon reads the path of variables that have none
if tuple(map(int, keras.version().split(".")[:2])) < (3, 15):
    _NOT_UPDATE_RULES.add("Muon")


class KerasOptimizer(Optimizer):
    """The class `name` of keras.optimizers, called once per update.

    Each call passes the rate and the update count, so the Keras object uses neither its counter nor its schedule. Its
    slots are Keras's own variables; the weights remain the given `tf.Variable`s. Weight decay is decoupled and comes
    before the update, as in Keras; the default weight decay of some Keras classes is not used.
    """

    decoupled_decay = True

    def __init__(
        self, learning_rate: float, *, name: str, args: Mapping[str, Any] | None = None, weight_decay: float = 0.0
    ) -> None:
        """Raise ConfigError for an unknown name, and for args that the class lacks or that accumtrain replaces."""
        super().__init__(learning_rate, weight_decay)
        self._keras_class = _find_class(name)
        self._args = _check_args(self._keras_class, args or {})
        self._decay_one = PerShapeFunction(lambda variables, rate: self._decay(variables["weight"], rate))

    def build_slots(self) -> None:
        """Raise ConfigError when Keras refuses a value in optim.args."""
        name = self._keras_class.__name__
        local_class = type(name, (self._keras_class, _ReplicaLocal), {})
        try:
            rule = local_class(**self._args)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optim.args={self._args}: keras.optimizers.{name} refuses it: {error}") from error
        rule.build([WeightView(parameter) for parameter in self.parameters])
        self.slots = rule.slots
        self._keras_update = rule.update  # not the object itself: a checkpoint would find the weights through it

    @tf.autograph.experimental.do_not_convert
    def apply(
        self, gradients: Sequence[tf.Tensor | None], rate: tf.Tensor, step: tf.Tensor, scale: tf.Tensor | float = 1.0
    ) -> None:
        if self._weight_decay:
            apply_one_by_one(
                partial(self._decay_one, {"weight": parameter.variable}, parameter.rate(rate))
                for parameter in self.parameters
                if parameter.decayed
            )
        self._keras_update(gradients, self.parameters, rate, step, scale)


class _ReplicaLocal(keras.optimizers.Optimizer):
    """Second base class of the optimizer that `KerasOptimizer` makes: each replica updates its own copies.

    Keras's own base class sums the gradients over the replicas within the update, which tf.distribute can't do inside
    `tf.cond`. Here the gradients are already the same on all replicas.
    """

    _updates_done: tf.Tensor | None = None
    _scale: tf.Tensor | float
    _rates: Callable[[tf.Tensor], list[tf.Tensor]]

    @property
    def iterations(self) -> tf.Tensor:
        return self._updates_done

    @property
    def slots(self) -> list[tf.Variable]:
        """The variables of the Keras optimizer except its counter and its rate, which are not used here."""
        unused = (self._iterations, self._learning_rate)
        return [variable.value for variable in self.variables if not any(variable is other for other in unused)]

    def update(
        self,
        gradients: Sequence[tf.Tensor | None],
        parameters: Sequence[Parameter],
        rate: tf.Tensor,
        step: tf.Tensor,
        scale: tf.Tensor | float,
    ) -> None:
        self._updates_done, self._scale = step, scale
        # a function, since Keras tracks the items of a list
        self._rates = lambda common: [parameter.rate(common) for parameter in parameters]
        self._backend_update_step(gradients, [parameter.variable for parameter in parameters], rate)
        self._updates_done = None

    def _backend_update_step(
        self, grads: Sequence[tf.Tensor], trainable_variables: Sequence[tf.Variable], learning_rate: tf.Tensor
    ) -> None:
        apply_one_by_one(
            partial(self._update_one, gradient, variable, rate)
            for gradient, variable, rate in zip(grads, trainable_variables, self._rates(learning_rate), strict=True)
        )

    def _update_one(self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> tf.Tensor:
        self.update_step(gradient * tf.cast(self._scale, gradient.dtype), variable, rate)
        return variable.read_value()


class WeightView(keras.Variable):
    """A Keras variable that wraps the given `tf.Variable` without a copy. Some optimizers select weights by path."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        variable = parameter.variable
        name = parameter.path.replace("/", "_")
        super().__init__("zeros", shape=variable.shape, dtype=variable.dtype.name, name=name)

    def _initialize_with_initializer(self, initializer: Any) -> None:
        self._initialize(self._parameter.variable)

    @property
    def path(self) -> str:
        return self._parameter.path


def update_rules() -> dict[str, type[keras.optimizers.Optimizer]]:
    """Return the classes of keras.optimizers that update plain variables, by name."""
    return {
        name: value
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value) and issubclass(value, keras.optimizers.Optimizer) and name not in _NOT_UPDATE_RULES
    }


def _find_class(name: str) -> type[keras.optimizers.Optimizer]:
    choices = update_rules()
    if name not in choices:
        raise ConfigError(
            f"optim.name={name} is not an optimizer of keras.optimizers that updates weights; "
            + suggest_names(name, sorted(choices))
        )
    return choices[name]


def _check_args(keras_class: type[keras.optimizers.Optimizer], args: Mapping[str, Any]) -> dict[str, Any]:
    known = [key for key in inspect.signature(keras_class).parameters if key not in ("kwargs", *_INSTEAD)]
    for key in args:
        if key in _INSTEAD:
            raise ConfigError(f"optim.args.{key}: accumtrain sets this itself; {_INSTEAD[key]}")
        if key not in known:
            raise ConfigError(f"optim.args.{key}: keras.optimizers.{keras_class.__name__} has only {', '.join(known)}")
    return dict(args)
