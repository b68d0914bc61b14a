"""A small configuration of every entry of every registry, for the tests that walk them.

An entry that is not named here has the defaults of its keys as its example. One with a key that has no default, or
whose defaults are too large for a test of seconds, gets a line.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from accumtrain.config.jobs import JOBS
from accumtrain.config.registries import REGISTRIES
from accumtrain.data.config import (
    CifarBinaryConfig,
    DigitsConfig,
    FolderConfig,
    IdxConfig,
    NpzConfig,
    SyntheticConfig,
    TableConfig,
    TextsConfig,
    TfdsConfig,
    TfrecordConfig,
)
from accumtrain.devices.config import AutoConfig, CpuConfig, GpuConfig, MirroredConfig, MultiworkerConfig, TpuConfig
from accumtrain.fields import EACH
from accumtrain.models.config import (
    MODELS,
    KerasModelConfig,
    LeNetConfig,
    MlpConfig,
    ResNetConfig,
    RevNetConfig,
    RevUNetConfig,
    UNetConfig,
)
from accumtrain.models.keras.config import KerasHubConfig
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.transformers.config import (
    DecoderConfig,
    EncoderConfig,
    RevDecoderConfig,
    RevEncoderConfig,
    RevViTConfig,
    ViTConfig,
)
from accumtrain.optim.config import AdafactorConfig, AdamConfig, AdamWConfig, KerasOptimConfig, SgdConfig
from accumtrain.optim.schedules import (
    ConstantConfig,
    CosineConfig,
    InverseTimeConfig,
    LinearConfig,
    RsqrtConfig,
    StepConfig,
    WsdConfig,
)
from accumtrain.tasks.config import CrossEntropyConfig

PLAIN: dict[str, Any] = {"mean": [0.0], "std": [1.0]}
IMAGE_SIZES = {"keras": 64}  # of models that need more than SIZE pixels
IMAGE = Path(__file__).parents[2] / "docs" / "scaling.png"
SMALL_TRANSFORMER: dict[str, Any] = {"depth": 2, "width": 8, "heads": 2}
BERT = Path(__file__).with_name("bert")  # a folder with a config.json alone
ARCHITECTURE = json.loads((BERT / "config.json").read_text())
SIZE = 9  # odd: halved, its maps leave a rest
EXAMPLES: dict[str, dict[str, Any]] = {
    "task": {},
    "model": {
        "lenet": LeNetConfig(),
        "mlp": MlpConfig(width=8),
        "resnet": ResNetConfig(units=[1, 1], filters=[8, 8, 16]),
        "revnet": RevNetConfig(units=[1, 1], filters=[8, 8, 16]),
        "unet": UNetConfig(filters=[4, 8]),
        "revunet": RevUNetConfig(filters=[8, 16], units=[1, 1]),
        "vit": ViTConfig(**SMALL_TRANSFORMER, patch=3),
        "revvit": RevViTConfig(**SMALL_TRANSFORMER, patch=3),
        "encoder": EncoderConfig(**SMALL_TRANSFORMER),
        "revencoder": RevEncoderConfig(**SMALL_TRANSFORMER),
        "decoder": DecoderConfig(**SMALL_TRANSFORMER, kv_heads=1),
        "revdecoder": RevDecoderConfig(**SMALL_TRANSFORMER),
        "keras": KerasModelConfig(name="MobileNet", args={"alpha": 0.25}),
        "pretrained": PretrainedConfig(path=str(BERT), architecture=ARCHITECTURE),
        "kerashub": KerasHubConfig(preset=str(BERT), architecture=ARCHITECTURE, args={"dropout": 0.0}),
    },
    "optim": {  # every term of the rule has a part in it
        "adam": AdamConfig(lr=1e-2, weight_decay=0.1),
        "adamw": AdamWConfig(lr=1e-2, weight_decay=0.1),
        "sgd": SgdConfig(lr=1e-2, weight_decay=0.1, momentum=0.9, nesterov=True),
        "adafactor": AdafactorConfig(lr=None, weight_decay=0.1, momentum=0.9),
        "keras": KerasOptimConfig(lr=1e-2, weight_decay=0.1, name="Lion", args={"beta_2": 0.9}),
    },
    "schedule": {
        "constant": ConstantConfig(warmup=2),
        "cosine": CosineConfig(warmup=2, final=0.1),
        "linear": LinearConfig(warmup=2, final=0.1),
        "step": StepConfig(warmup=2, boundaries=[3, 5]),
        "rsqrt": RsqrtConfig(warmup=2, timescale=3),
        "inverse_time": InverseTimeConfig(warmup=2, timescale=3),
        "wsd": WsdConfig(warmup=2, decay=0.5, final=0.1),
    },
    "loss": {"cross_entropy": CrossEntropyConfig()},
    "data": {  # their files: written by files.py, relative to the working directory
        "digits": DigitsConfig(val_fraction=None),
        "synthetic": SyntheticConfig(image_size=6, num_classes=3, train_examples=17, test_examples=5, **PLAIN),
        "tfds": TfdsConfig(name="contract_pictures", dir="prepared", **PLAIN),
        "folder": FolderConfig(path="photos", **PLAIN),
        "table": TableConfig(path="labelled/labels.csv", **PLAIN),
        "npz": NpzConfig(path="mine.npz", **PLAIN),
        "cifar_binary": CifarBinaryConfig(path="cifar", augment="none", **PLAIN),
        "idx": IdxConfig(path="mnist", **PLAIN),
        "tfrecord": TfrecordConfig(
            path="train-*", test_path="test-*", image_feature="image", label_feature="label", num_classes=3, **PLAIN
        ),
        "texts": TextsConfig(path="texts", length=12),
    },
    "device": {
        "auto": AutoConfig(),
        "cpu": CpuConfig(virtual=2),
        "gpu": GpuConfig(),
        "mirrored": MirroredConfig(virtual=2),
        "multiworker": MultiworkerConfig(workers=["one:1", "two:1"], index=0),
        "tpu": TpuConfig(tpu="local"),
    },
    "job": {  # overrides, beside those of a small run
        "train": ("train.steps=2",),
        "evaluate": (),
        "verify": (),
        "plan": ("batch_size=2", "accum.steps=1"),
        "memory": (),
        "bench": ("bench.updates=2", "bench.seconds=0"),
        "lr": ("range_test.updates=30",),
        "batch": ("batch_test.batches=[8,16]", "batch_test.seeds=1"),
        "report": (),
        "predict": (f"predict.input={IMAGE}",),
        "export": (),
        "info": (),
    },
}


for _group, _table in REGISTRIES.items():
    for _entry in _table:
        if not any(each.default is each.default_factory is MISSING for each in fields(_entry.config)):
            EXAMPLES[_group].setdefault(_entry.name, _entry.config())
for _job in JOBS:
    EXAMPLES["job"].setdefault(_job.name, ())


def example_of(group: str, name: str) -> Any:
    """The example of an entry; fails the test where there is none."""
    if name not in EXAMPLES.get(group, {}):
        pytest.fail(f"{group}={name} has no example: add a small configuration to EXAMPLES in {__file__}")
    return EXAMPLES[group][name]


def inputs_of(name: str) -> str:
    """The kind of the inputs of a model's example."""
    return {"kerashub": "tokens"}.get(name, example_of("model", name).inputs)


def tells_of(name: str) -> str | None:
    """What a model's example tells: a class of each image or text, or of each pixel."""
    told = MODELS[name].config.tells
    return EACH if told == (EACH,) else None


def size_for(name: str) -> int:
    """Pixels of the square images that a model's example is made for."""
    return IMAGE_SIZES.get(name, SIZE)
