"""From a configuration to a window: model, optimizer, schedule and buffers, inside the strategy's scope."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.data.source import Data
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.loss import build_loss, build_metrics
from accumtrain.engine.loss_scale import LossScale
from accumtrain.engine.training_loss import training_loss
from accumtrain.engine.window import Window
from accumtrain.models.build_model import build_model
from accumtrain.models.path_patterns import rate_factors
from accumtrain.models.spec import ModelSpec
from accumtrain.optim.build_optimizer import build_optimizer


def model_for(config: Config, data: Data, *, draws: bool = True) -> Model:
    """Builds the model of a run, with its initial weights. Call it inside the strategy's scope.

    Args:
        draws: whether kernels are drawn; if not, they are zeros.

    Raises:
        ConfigError: the model can't be built for the images of this data.
    """
    spec = ModelSpec(data.image_shape, data.num_classes, config.precision, config.run.seed, draws)
    return build_model(config.model, spec)


def moving_average(config: Config, model: Model) -> MovingAverage | None:
    """The moving average of the weights; None if ema.decay is 0."""
    return MovingAverage(model.trainable_variables, config.ema.decay) if config.ema.decay > 0 else None


def loss_scale(config: Config) -> LossScale | None:
    """The loss scale for float16; None for other precisions."""
    if config.precision != "float16":
        return None
    return LossScale(config.loss_scale.initial, config.loss_scale.growth_every)


def build_window(
    config: Config,
    data: Data,
    total_steps: int,
    strategy: tf.distribute.Strategy,
    *,
    model: Model | None = None,
    draws: bool = True,
) -> Window:
    """Builds all state of a run, at update 0.

    Args:
        model: what `model_for` has returned, with the weights to begin with; None calls it.
        draws: whether kernels are drawn; if not, they are zeros, for what is restored or only measured.

    Raises:
        ConfigError: the model can't be built for the images of this data, the optimizer is unknown, optim.rates has a
            pattern for no variable, or the loss does not fit the classes.
    """
    with strategy.scope():
        model = model or model_for(config, data, draws=draws)
        optimizer = build_optimizer(config.optim)
        if config.optim.rates:
            optimizer.scale_rates(rate_factors(config.optim.rates, model.trainable_paths))
        return Window(
            model,
            optimizer,
            loss=build_loss(training_loss(config, data)),
            metrics=build_metrics(config.loss),
            schedule=config.schedule.build(total_steps),
            clip_norm=config.optim.clip_norm,
            adaptive_clip=config.optim.adaptive_clip,
            ema=moving_average(config, model),
            loss_scale=loss_scale(config),
            seed=config.run.seed,
            micro_steps=config.accum.count,
            reduction=config.accum.reduction,
            sum_dtype=tf.float64 if config.accum.dtype == "float64" else None,
        )
