"""The optimizers: keys and class of each kind, and the checks of their arguments."""

from __future__ import annotations

import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Annotated, Any, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.fields import (
    COUNT,
    FRACTION,
    MEAN_SHARE,
    NOT_NEGATIVE,
    POSITIVE,
    OneOf,
    Range,
    Role,
    check_size,
    constraints_of,
    describe_type,
    format_value,
)
from accumtrain.registry import ComponentConfig, Entry, Registry, required


@dataclass(kw_only=True)
class OptimConfig(ComponentConfig):
    """Keys of every optimizer.

    `lr`: learning rate, before the factor of the schedule. null (Adafactor only): its built-in relative step size.
    `weight_decay`: strength of the decay of kernels; biases and normalisation have none. 0 turns it off.
    `clip_norm`: largest norm of all gradients together; 0: no clipping.
    `rates`: factors on the rate for some variables, by patterns of their paths, such as {segments/0/*: 0.1}. The last
    matching pattern decides; variables without one have the factor 1.
    `layer_decay`: rate of each layer as a multiple of the rate of the next layer. A layer is a segment of the model, or
    a unit of a reversible stage. 1: all layers have the same rate.
    `adaptive_clip`: largest ratio between the norm of a unit's gradient and the norm of its weights; 0: no clipping. A
    unit is the part of a kernel with one index of its last axis. That is one output, or in a depthwise convolution of
    Keras all channels. Use either optim.clip_norm or optim.adaptive_clip, not both.

    Attributes:
        has_own_rate: `lr` may be null; the optimizer then computes its own rate.
        memory_effect: the effects of choosing it to save memory, in a few words; empty if its state is not small.
    """

    lr: Annotated[float | None, POSITIVE, Role.RULE] = 1e-3
    weight_decay: Annotated[float, NOT_NEGATIVE, Role.RULE] = 0.0
    rates: Annotated[dict[str, Any], Role.RULE] = field(default_factory=dict)
    layer_decay: Annotated[float, Range(0, 1, above=True, closed=True), Role.RULE] = 1.0
    clip_norm: Annotated[float, NOT_NEGATIVE, Role.RULE] = 0.0
    adaptive_clip: Annotated[float, NOT_NEGATIVE, Role.RULE] = 0.0

    has_own_rate: ClassVar[bool] = False
    memory_effect: ClassVar[str] = ""

    @property
    def forgets_weights(self) -> bool:
        """The first update computes the weights anew, without those before it."""
        return False

    @property
    def keeps_state(self) -> bool:
        """The state holds about as many values as there are weights, or more."""
        return True

    @property
    def half_lives(self) -> dict[str, tuple[str, float]]:
        """The means that have a half-life: the argument of the optimizer, with the key that gives it and its value."""
        return {}

    def with_schedule(self, schedule: str) -> str:
        """Return the words of the banner about the optimizer and its schedule."""
        rate = "a rate of its own" if self.lr is None else f"rate {self.lr:g}"
        return f"{self.label}, {rate}, {schedule} schedule"

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of its class: all keys but `kind` and those of the window, with `lr` spelled out."""
        not_its_own = ("kind", "rates", "layer_decay", "clip_norm", "adaptive_clip", "half_life", "half_life_first")
        values = {key.name: getattr(self, key.name) for key in fields(self) if key.name not in not_its_own}
        return {"learning_rate": values.pop("lr"), **values}

    def check(self) -> None:
        if self.clip_norm and self.adaptive_clip:
            raise ConfigError(
                f"optim.clip_norm={self.clip_norm} and optim.adaptive_clip={self.adaptive_clip}: set one of them to 0"
            )
        for pattern, factor in self.rates.items():
            if not isinstance(pattern, str):
                raise ConfigError(
                    f"optim.rates={format_value(self.rates)}: {format_value(pattern)} is not text, and the paths of "
                    "variables are; write patterns of paths, such as optim.rates={segments/0/*:0.1}"
                )
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
                raise ConfigError(
                    f"optim.rates.{pattern}={format_value(factor)}: must be a factor above 0; weights stay as they "
                    f"are with model.freeze=[{pattern}] in its place"
                )
            check_size(f"optim.rates.{pattern}", factor)
        if self.lr is None and not self.has_own_rate:
            owners = " and ".join(entry.name for entry in OPTIMIZERS if entry.config.has_own_rate)
            raise ConfigError(
                f"optim.lr=null: only {owners} has a rate of its own; give one, for example optim.lr=1e-3"
            )


@dataclass(kw_only=True)
class AdamConfig(OptimConfig):
    """Adam. Weight decay is L2: it is added to the gradient.

    `beta1`: share of the mean gradient that each update keeps. Values closer to 1 than the limit are 1 in float32.
    `beta2`: share of the mean squared gradient that each update keeps. Values closer to 1 than the limit are 1 in
    float32.
    `epsilon`: added to the square root of the second moment.
    `half_life`: examples after which half of the mean squared gradient is forgotten, in the place of optim.beta2: an
    update of B examples keeps 2^(-B / half_life). Tasks of tokens count tokens to predict. null: optim.beta2 is used.
    `half_life_first`: the same of the mean gradient, in the place of optim.beta1.
    """

    kind: str = "adam"
    beta1: Annotated[float, MEAN_SHARE, Role.RULE] = 0.9
    beta2: Annotated[float, MEAN_SHARE, Role.RULE] = 0.999
    epsilon: Annotated[float, POSITIVE, Role.RULE] = 1e-8
    half_life: Annotated[float | None, POSITIVE, Role.RULE] = None
    half_life_first: Annotated[float | None, POSITIVE, Role.RULE] = None

    @property
    def half_lives(self) -> dict[str, tuple[str, float]]:
        given = {"beta1": ("half_life_first", self.half_life_first), "beta2": ("half_life", self.half_life)}
        return {beta: (key, value) for beta, (key, value) in given.items() if value is not None}

    def check(self) -> None:
        super().check()
        check_half_lives(self)


@dataclass(kw_only=True)
class AdamWConfig(AdamConfig):
    """Adam with decoupled weight decay."""

    kind: str = "adamw"
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.05


@dataclass(kw_only=True)
class SgdConfig(OptimConfig):
    """SGD with momentum. Weight decay is L2: it is added to the gradient, as in the ResNet and RevNet papers.

    `momentum`: share of the earlier gradients' sum that each update keeps; 0: no momentum.
    `nesterov`: use Nesterov's momentum; optim.momentum must be above 0.
    """

    kind: str = "sgd"
    lr: Annotated[float | None, POSITIVE] = 0.1
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-4
    momentum: Annotated[float, FRACTION] = 0.9
    nesterov: bool = False

    @property
    def keeps_state(self) -> bool:
        return self.momentum > 0

    def check(self) -> None:
        super().check()
        if self.nesterov and not self.momentum:
            raise ConfigError(
                "optim.nesterov=true and optim.momentum=0: there is no momentum to look ahead by; set "
                "optim.momentum=0.9, or leave optim.nesterov out"
            )


@dataclass(kw_only=True)
class AdafactorConfig(OptimConfig):
    """Adafactor (Shazeer & Stern 2018, arXiv:1804.04235). Weight decay is decoupled.

    `lr`: learning rate, before the factor of the schedule; null: the paper's relative step size.
    `decay_exponent`: if optim.beta2 is null, beta2 at update t is 1 - t^-decay_exponent.
    `beta2`: share of the second moment that each update keeps; null: it grows as optim.decay_exponent says.
    `half_life`: examples after which half of the second moment is forgotten, in the place of optim.beta2: an update of
    B examples keeps 2^(-B / half_life). Tasks of tokens count tokens to predict. null: optim.beta2 is used.
    `epsilon1`: added to the squares of the gradients.
    `epsilon2`: the smallest factor on the rate, for weights near 0.
    `clip_threshold`: largest root mean square of an update, before the rate; null: no clipping.
    `scale_parameter`: multiply the rate by the root mean square of the weight.
    `unscaled_relative_step`: factor on the relative step if optim.scale_parameter is false.
    `warmup_init`: begin slowly: the relative step is at most 1e-6 * t at update t, instead of at most 1e-2.
    `min_dim_size_to_factor`: second moments are factored if both axes are at least this long. Other weights keep the
    whole second moment.
    `factored_axes`: the two axes that are factored: the last two, or the two largest.
    `momentum`: share of the first moment that each update keeps; 0: no first moment is stored.
    `momentum_of`: what the momentum averages: the change of the weight, rate included, or the update before it is
    scaled.
    `weight_decay_factor`: factor on optim.weight_decay: the rate, the step_size (the rate after optim.scale_parameter),
    or one.
    """

    has_own_rate: ClassVar[bool] = True
    memory_effect: ClassVar[str] = "almost no optimizer state, another learning rate"

    kind: str = "adafactor"
    lr: Annotated[float | None, POSITIVE] = 0.05
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.1
    decay_exponent: Annotated[float, POSITIVE] = 0.8
    beta2: Annotated[float | None, Range(0, 1, above=True), Role.RULE] = None
    half_life: Annotated[float | None, POSITIVE, Role.RULE] = None
    epsilon1: Annotated[float, POSITIVE, Role.RULE] = 1e-30
    epsilon2: Annotated[float, POSITIVE, Role.RULE] = 1e-3
    clip_threshold: Annotated[float | None, POSITIVE, Role.RULE] = 1.0
    scale_parameter: bool = True
    unscaled_relative_step: Annotated[float, POSITIVE] = 0.05
    warmup_init: bool = False
    min_dim_size_to_factor: Annotated[int, COUNT] = 2
    factored_axes: Annotated[str, OneOf(("last", "largest"))] = "last"
    momentum: Annotated[float, FRACTION] = 0.0
    momentum_of: Annotated[str, OneOf(("change", "update"))] = "change"
    weight_decay_factor: Annotated[str, OneOf(("rate", "step_size", "one")), Role.RULE] = "rate"

    @property
    def half_lives(self) -> dict[str, tuple[str, float]]:
        return {} if self.half_life is None else {"beta2": ("half_life", self.half_life)}

    @property
    def keeps_state(self) -> bool:
        return self.momentum > 0

    def check(self) -> None:
        super().check()
        check_half_lives(self)
        if self.warmup_init and self.lr is not None:
            raise ConfigError(
                f"optim.warmup_init=true: only the relative step warms up, and optim.lr={self.lr} is given; "
                "set optim.lr=null, or schedule.warmup to a number of updates"
            )


@dataclass(kw_only=True)
class KerasOptimConfig(OptimConfig):
    """An optimizer of keras.optimizers. Weight decay is decoupled.

    `name`: name of a class of keras.optimizers.
    `args`: its keyword arguments.
    """

    kind: str = "keras"
    name: str = required("Lion")
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name

    @property
    def forgets_weights(self) -> bool:
        return self.name == "Ftrl"


OPTIMIZERS: Registry[Entry[OptimConfig]] = Registry("optim.kind")
OPTIMIZERS.add(
    Entry(AdamConfig, "accumtrain.optim.adam:Adam"),
    Entry(AdamWConfig, "accumtrain.optim.adam:AdamW"),
    Entry(SgdConfig, "accumtrain.optim.sgd:SGD"),
    Entry(AdafactorConfig, "accumtrain.optim.adafactor:Adafactor"),
    Entry(KerasOptimConfig, "accumtrain.optim.keras_optimizer:KerasOptimizer"),
)


def check_half_lives(config: OptimConfig) -> None:
    """Raise ConfigError if a half-life is given beside the share in whose place it stands."""
    for name, (key, value) in config.half_lives.items():
        given, default = getattr(config, name), type(config).__dataclass_fields__[name].default
        if given != default:
            raise ConfigError(
                f"optim.{key}={value:g} and optim.{name}={given}: both say what an update keeps of a mean; use "
                f"optim.{name}={format_value(default)}, its default, or optim.{key}=null"
            )


def check_arguments(config: type[OptimConfig], arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for the first argument that the key of its name refuses. The key of learning_rate is lr.

    Numbers may be NumPy's.
    """
    hints, constraints = typing.get_type_hints(config), constraints_of(config)
    for name, value in arguments.items():
        key = "lr" if name == "learning_rate" else name
        plain = _to_plain_number(hints[key], name, value)
        try:
            for constraint in constraints[key]:
                constraint.check(name, plain)
            if isinstance(plain, int | float):
                check_size(name, plain)
        except ConfigError as error:
            raise ValueError(str(error)) from None


def _to_plain_number(hint: Any, name: str, value: Any) -> Any:
    """Return the value, a number as Python's own. Raise ValueError if it is not of the type `hint`."""
    import numpy as np

    options = typing.get_args(hint) or (hint,)
    plain = value
    if isinstance(value, bool | np.bool_):
        fits = bool in options
    elif isinstance(value, numbers.Integral):
        plain, fits = int(value), int in options or float in options
    elif isinstance(value, numbers.Real):
        plain, fits = float(value), float in options
    else:
        fits = type(value) in options
    if not fits:
        expected = " or ".join(describe_type(option) for option in options if option is not NoneType)
        raise ValueError(f"{name}={value!r}: must be {expected}")
    return plain
