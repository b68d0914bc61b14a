"""Small models and windows for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Draws, Mode
from accumtrain.backprop.pullback import Gradients
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import PerExample
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.models.build import build_model
from accumtrain.models.config import LeNetConfig, ModelConfig, ResNetConfig, RevNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import OptimConfig
from accumtrain.optim.schedules import Schedule
from accumtrain.train.build import build_optimizer

CLASSES = 10


def resnet20(norm: str = "batch", memory: str = "store", units: tuple[int, ...] = (3, 3, 3)) -> ResNetConfig:
    return ResNetConfig(
        memory=memory,
        norm=norm,
        stem="cifar",
        bottleneck=False,
        units=list(units),
        filters=[16, 16, 32, 64][: len(units) + 1],
    )


def revnet38(norm: str = "batch", memory: str = "reverse", units: tuple[int, ...] = (3, 3, 3)) -> RevNetConfig:
    return RevNetConfig(
        memory=memory,
        norm=norm,
        stem="cifar",
        bottleneck=False,
        units=list(units),
        filters=[32, 32, 64, 112][: len(units) + 1],
        snap_bits=16,
    )


def bottleneck_revnet(norm: str = "batch", memory: str = "reverse") -> RevNetConfig:
    """RevNet-56 with two stages of two units and narrow."""
    return RevNetConfig(memory=memory, norm=norm, stem="imagenet", bottleneck=True, units=[2, 2], filters=[32, 32, 64])


def lenet(memory: str = "store") -> LeNetConfig:
    return LeNetConfig(memory=memory)


def examples(count: int, shape: tuple[int, int, int], seed: int = 0) -> dict[str, tf.Tensor]:
    """Images with a pattern of their class and noise."""
    label = tf.random.stateless_uniform([count], [seed, 1], 0, CLASSES, tf.int32)
    pattern = tf.random.stateless_normal([CLASSES, *shape], [7, 7])
    image = 0.5 * tf.gather(pattern, label) + tf.random.stateless_normal([count, *shape], [seed, 2])
    return {"inputs": image, "targets": label, "weight": tf.ones([count])}


def window_for(
    config: ModelConfig,
    optim: OptimConfig,
    shape: tuple[int, int, int],
    *,
    precision: str = "float32",
    clip_norm: float = 0.0,
    adaptive_clip: float = 0.0,
    micro_steps: int = 1,
    reduction: str = "mean",
    schedule: Schedule | None = None,
    ema: Callable[[Sequence[tf.Variable]], MovingAverage] | None = None,
    sum_dtype: tf.DType | None = None,
    metrics: Mapping[str, PerExample] | None = None,
) -> Window:
    """A window with weights that depend on the configuration alone."""
    model = build_model(config, ModelSpec(shape, CLASSES, precision, seed=3))
    return Window(
        model,
        build_optimizer(optim),
        schedule=schedule,
        clip_norm=clip_norm,
        adaptive_clip=adaptive_clip,
        ema=ema(model.trainable_variables) if ema else None,
        seed=11,
        micro_steps=micro_steps,
        reduction=reduction,
        sum_dtype=sum_dtype,
        metrics=metrics,
    )


def train(window: Window, batches: list[dict[str, tf.Tensor]], micro_steps: int) -> list[dict[str, float]]:
    """One update per batch, each in `micro_steps` equal micro-batches."""
    step = Step(window)
    micro = batches[0]["targets"].shape[0] // micro_steps
    joined = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *batches)
    dataset = tf.data.Dataset.from_tensor_slices(joined)
    iterator = iter(dataset.batch(micro, drop_remainder=True))
    updates = []
    for _ in batches:
        step.accumulate(iterator, micro_steps)
        updates.append({name: value.numpy().item() for name, value in step.commit(partial=True).items()})
    return updates


def gradients_of_micro_batch(
    config: ModelConfig, precision: str, shape: tuple[int, int, int], draws: Draws | None = None
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return the loss, the gradients and the batch statistics of a micro-batch of 8 examples."""
    model = build_model(config, ModelSpec(shape, CLASSES, precision, seed=1))
    data = examples(8, shape)
    collected: dict[Any, tf.Tensor] = {}

    def emit(gradients: Gradients) -> list[tf.Operation]:
        collected.update({variable.ref(): gradient for variable, gradient in gradients})
        return [gradient.op for _, gradient in gradients if gradient is not None]

    def loss(logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(data["targets"], logits))

    @tf.function(autograph=False)
    def run() -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        mode = Mode(training=True, recording=True, draws=draws)
        value, _ = tape.gradient(model, data["inputs"], loss, mode, emit)
        statistics = [tensor for norm in model.norms for tensor in mode.statistics[norm]]
        return [value], [collected[variable.ref()] for variable in model.trainable_variables], statistics

    value, gradients, statistics = ([tensor.numpy() for tensor in tensors] for tensors in run())
    return value, gradients, statistics


def assert_same_bits(one: Iterable[Any], other: Iterable[Any]) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def norm(arrays: Iterable[np.ndarray]) -> float:
    return np.sqrt(sum(np.sum(np.square(array, dtype=np.float64)) for array in arrays))


def distance(one: Iterable[np.ndarray], other: Iterable[np.ndarray]) -> float:
    return norm(a - b for a, b in zip(one, other, strict=True))


def all_variables(window: Window) -> list[tf.Variable]:
    """All that an update of the window reads or writes, each once."""
    averages = [] if window.ema is None else window.ema.averages
    scale = [] if window.loss_scale is None else window.loss_scale.variables
    state = [*window.model.variables, *window.optimizer.state, *averages, *scale, window.step, *window.buffers]
    return list({id(variable): variable for variable in state}.values())


def is_compiled_by_xla(step: Step, batches: Iterator[Any]) -> bool:
    """Return whether XLA compiles its micro-steps."""
    functions = step.prepare(batches).graph.as_graph_def().library.function
    return any(each.attr["_XlaMustCompile"].b for each in functions)
