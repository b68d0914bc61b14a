"""Small models and windows for the engine's tests."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.kinds.models import LeNetConfig, ResNetConfig, RevNetConfig
from accumtrain.models.build_model import build_model
from accumtrain.optim.build_optimizer import build_optimizer

CLASSES = 10


def resnet20(norm: str = "batch", memory: str = "store", units: tuple[int, ...] = (3, 3, 3)) -> ResNetConfig:
    return ResNetConfig("resnet", memory, norm, "cifar", False, list(units), [16, 16, 32, 64][: len(units) + 1])


def revnet38(norm: str = "batch", memory: str = "reverse", units: tuple[int, ...] = (3, 3, 3)) -> RevNetConfig:
    return RevNetConfig(
        "revnet", memory, norm, "cifar", False, list(units), [32, 32, 64, 112][: len(units) + 1], snap_bits=16
    )


def bottleneck_revnet(norm: str = "batch", memory: str = "reverse") -> RevNetConfig:
    """RevNet-56 with two stages of two units and narrow."""
    return RevNetConfig("revnet", memory, norm, "imagenet", True, [2, 2], [32, 32, 64], snap_bits=16)


def lenet(memory: str = "store") -> LeNetConfig:
    return LeNetConfig("lenet", memory)


def examples(count: int, shape: tuple[int, int, int], seed: int = 0) -> dict[str, tf.Tensor]:
    """Images with a pattern of their class and noise."""
    label = tf.random.stateless_uniform([count], [seed, 1], 0, CLASSES, tf.int32)
    pattern = tf.random.stateless_normal([CLASSES, *shape], [7, 7])
    image = 0.5 * tf.gather(pattern, label) + tf.random.stateless_normal([count, *shape], [seed, 2])
    return {"image": image, "label": label, "weight": tf.ones([count])}


def window_for(
    config, optim, shape, *, precision="float32", clip_norm=0.0, micro_steps=1, schedule=None, ema=None, sum_dtype=None
):
    """A window with weights that depend on the configuration alone."""
    model = build_model(config, precision=precision, seed=3, image_shape=shape, num_classes=CLASSES)
    return Window(
        model,
        build_optimizer(optim),
        schedule or (lambda step: tf.constant(1.0)),
        clip_norm=clip_norm,
        ema=ema(model.trainable_variables) if ema else None,
        seed=11,
        micro_steps=micro_steps,
        sum_dtype=sum_dtype,
    )


def train(window: Window, batches: list[dict[str, tf.Tensor]], micro_steps: int) -> list[dict[str, float]]:
    """One update per batch, each in `micro_steps` equal micro-batches."""
    step = Step(window, tf.distribute.get_strategy())
    micro = batches[0]["label"].shape[0] // micro_steps
    dataset = tf.data.Dataset.from_tensor_slices({k: tf.concat([b[k] for b in batches], 0) for k in batches[0]})
    iterator = iter(dataset.batch(micro, drop_remainder=True))
    updates = []
    for _ in batches:
        step.accumulate(iterator, micro_steps)
        updates.append({name: value.numpy().item() for name, value in step.commit().items()})
    return updates
