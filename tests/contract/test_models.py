"""Every model, with each value of its keys, in each precision, under each memory policy: one update, one gradient."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.check import check_config
from accumtrain.config.schema import PRECISIONS, Config
from accumtrain.data.config import NpzConfig, SyntheticConfig
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.inputs.scenes import make_scenes
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.masks.source import MaskedArrays
from accumtrain.data.source import Dataset
from accumtrain.data.text.vocabulary import PADDING, number_ids
from accumtrain.engine.config import AccumConfig, LossScaleConfig
from accumtrain.engine.losses import PerPosition, cross_entropy
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.fields import EACH, MASKS, OneOf
from accumtrain.measure.verify.result import ROUNDING, relative_difference
from accumtrain.models.build import build_model
from accumtrain.models.config import MODELS, STORE, ModelConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import SgdConfig
from accumtrain.optim.schedules import ConstantConfig
from accumtrain.optim.sgd import SGD
from accumtrain.tasks.config import PositionsConfig, SegmentConfig
from accumtrain.tasks.objective import build_objective, open_stored
from accumtrain.train.build import build_window
from tests.contract.examples import EXAMPLES, SIZE, example_of, inputs_of, size_for, tells_of
from tests.engine.small import CLASSES, examples

BATCH, STEPS, TOKENS = 8, 2, 11
# that nobody drew a model for
SHAPES = [(1, 1, 3), (3, 31, 2), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((5, 1, 1), (8, 8, 4)))]
MARKS = {"kerashub": [pytest.mark.skipif(find_spec("keras_hub") is None, reason="needs KerasHub")]}
BOUNDS = ROUNDING | {"float16": ROUNDING["bfloat16"]}  # which job=verify does not compare


@dataclass(frozen=True)
class Variant:
    """An entry's example with at most one key changed, in a precision."""

    name: str
    key: str | None
    value: typing.Any
    precision: str

    def config(self, memory: str) -> ModelConfig:
        changes = {} if self.key is None else {self.key: self.value}
        return replace(example_of("model", self.name), memory=memory, **changes)

    def is_slow(self, memory: str) -> bool:
        """Left to `make test-slow`."""
        if self.name == "kerashub":
            return True
        transformers = ("vit", "encoder", "decoder", "pretrained")
        if self.name in transformers or (self.name.startswith("rev") and self.name != "revnet"):
            return self.key is not None or self.precision not in ("float32", "bfloat16")
        if self.precision == "float32":
            if self.name == "keras" and memory != STORE:
                return True
            return self.key is not None and memory != self.config(STORE).policies[-1]
        if self.precision == "float64":
            return self.name != "lenet"
        if self.name == "keras" or self.key is not None:
            return True
        return self.precision == "float16" and memory != STORE

    def __str__(self) -> str:
        return "-".join(map(str, filter(None, (self.name, self.key and f"{self.key}={self.value}", self.precision))))


def changes(name: str) -> Iterator[tuple[str | None, typing.Any]]:
    """Nothing, and every other value of each key that has a few: one of a list, true or false."""
    yield None, None
    example = EXAMPLES["model"].get(name)
    hints = typing.get_type_hints(MODELS[name].config, include_extras=True)
    for each in fields(example) if example else ():
        (choices,) = [c.choices for c in getattr(hints[each.name], "__metadata__", ()) if isinstance(c, OneOf)] or [()]
        values = (False, True) if hints[each.name] is bool else choices
        if each.name != "memory":
            yield from ((each.name, value) for value in values if value != getattr(example, each.name))


def variants() -> Iterator[Variant]:
    for entry in MODELS:
        for key, value in changes(entry.name):
            for precision in PRECISIONS:
                yield Variant(entry.name, key, value, precision)


def allowed(variant: Variant) -> bool:
    try:
        variant.config(STORE).check_precision(variant.precision)
    except ConfigError:
        return False
    return True


PARAMETERS = [
    pytest.param(
        variant,
        memory,
        id=f"{variant}-{memory}",
        marks=[*MARKS.get(variant.name, ()), *([pytest.mark.slow] if variant.is_slow(memory) else [])],
    )
    for variant in variants()
    if variant.name in EXAMPLES["model"] and allowed(variant)
    for memory in variant.config(STORE).policies
]


@dataclass(frozen=True)
class Update:
    """The record of one update: weights before and after it, the sums of the window, the commit's scalars."""

    before: list[np.ndarray]
    after: list[np.ndarray]
    sums: list[np.ndarray]
    scalars: dict[str, float]


def values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def tokens() -> tf.Tensor:
    """Texts of 2 to SIZE tokens, padded."""
    drawn = tf.random.stateless_uniform([BATCH, SIZE], [3, 4], 0, TOKENS, tf.int32)
    return tf.where(tf.range(SIZE) < tf.range(2, BATCH + 2)[:, None], drawn, PADDING)


def masks(count: int, shape: tuple[int, ...]) -> tf.Tensor:
    """Classes of pixels, of which some have none."""
    return tf.random.stateless_uniform([count, *shape[:2]], [5, 6], -1, CLASSES, tf.int32)


def masked_data(name: str) -> Dataset:
    """Images with masks, in memory."""
    shape = (size_for(name), size_for(name), 3)
    split = MaskedArrays(np.zeros([2, *shape], np.uint8), masks(2, shape).numpy(), CLASSES, 255)
    inputs = make_scenes(NpzConfig(path="mine.npz"), shape, 255)
    return Dataset(train=split, test=split, num_classes=CLASSES, inputs=inputs, targets=MASKS)


@cache
def update(variant: Variant, memory: str) -> Update:
    """The first update of a run. Its results are kept for the policies that are compared with it."""
    config = Config(
        model=variant.config(memory),
        optim=SgdConfig(lr=0.1, momentum=0.0, weight_decay=0.0),
        schedule=ConstantConfig(),
        data=SyntheticConfig(image_size=size_for(variant.name), num_classes=CLASSES),
        batch_size=BATCH,
        accum=AccumConfig(steps=STEPS),
        precision=variant.precision,
        loss_scale=LossScaleConfig(initial=64.0),
    )
    if tells_of(variant.name) == EACH:
        config = replace(config, task=SegmentConfig(), loss=PositionsConfig(), data=NpzConfig(path="mine.npz"))
    check_config(config)
    data = masked_data(variant.name) if tells_of(variant.name) == EACH else open_stored(config)
    given = examples(BATCH, data.shape)
    if tells_of(variant.name) == EACH:
        given["targets"] = masks(BATCH, data.shape)
    if inputs_of(variant.name) == "tokens":
        data = replace(data, inputs=Tokens((SIZE,), number_ids(TOKENS)))
        given["inputs"] = tokens()
    if inputs_of(variant.name) == "arrays":
        data = replace(data, inputs=Arrays((SIZE,)))
        given["inputs"] = tf.random.stateless_normal([BATCH, SIZE], [3, 4])
    window = build_window(config, build_objective(config, data), 1, tf.distribute.get_strategy())
    step, before = Step(window), values(window.variables_)
    batches = tf.data.Dataset.from_tensor_slices(given).batch(BATCH // STEPS)
    step.accumulate(iter(batches), STEPS)
    sums = values(window.gradients)
    scalars = {name: value.numpy().item() for name, value in step.commit().items()}
    return Update(before, values(window.variables_), sums, scalars)


@pytest.mark.parametrize("name", MODELS.names)
def test_every_model_is_tried(name):
    assert isinstance(example_of("model", name), MODELS[name].config)


@pytest.mark.parametrize(("variant", "memory"), PARAMETERS)
def test_one_update(variant, memory):
    made = update(variant, memory)
    assert (made.scalars["finite"], made.scalars["step"], made.scalars["examples"]) == (True, 1, BATCH)
    assert np.isfinite([made.scalars["loss"], made.scalars["grad_norm"]]).all()
    for before, after, sums in zip(made.before, made.after, made.sums, strict=True):
        assert np.isfinite(sums).all()
        assert sums.any(), "its gradient reached the buffer"
        assert (before != after).any()


@pytest.mark.parametrize(("variant", "memory"), [each for each in PARAMETERS if each.values[1] != STORE])
def test_a_policy_changes_neither_weights_nor_gradient(variant, memory):
    made, stored = update(variant, memory), update(variant, STORE)
    assert all(map(np.array_equal, made.before, stored.before)), "weights are a function of the seed"
    if variant.config(memory).same_bits_in_every_graph:
        assert all(map(np.array_equal, made.sums, stored.sums))
    else:
        assert relative_difference(made.sums, stored.sums) <= BOUNDS[variant.precision]


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in EXAMPLES["model"]])
def test_initial_weights_are_a_function_of_the_seed(name):
    kind = inputs_of(name)
    shape = (size_for(name), size_for(name), 3) if kind == "pixels" else (SIZE,)
    vocabulary = TOKENS if kind == "tokens" else 0
    keys = {"inputs": (kind,), "vocabulary": vocabulary, "tells": tells_of(name)}
    specs = [ModelSpec(shape, CLASSES, seed=seed, **keys) for seed in (1, 1, 2)]
    first, again, other = (values(build_model(example_of("model", name), spec).trainable_variables) for spec in specs)
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@pytest.mark.filterwarnings("ignore:This model usually expects:UserWarning")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("name", "key", "value"), [(entry.name, *each) for entry in MODELS for each in changes(entry.name)]
)
def test_images_of_any_size_work_or_are_refused(name, key, value, shape):
    """Micro-steps without graphs: each layer says at once what it can't do."""
    gradients = {}
    for memory in example_of("model", name).policies:
        config = Variant(name, key, value, "float32").config(memory)
        try:
            model = build_model(config, ModelSpec(shape, CLASSES, tells=tells_of(name)))
        except ConfigError:
            assert not gradients, "refused under one policy and not under another"
            continue
        given = examples(2, shape)
        if tells_of(name) == EACH:
            window = Window(model, SGD(), loss=PerPosition(cross_entropy), metrics={})
            given["targets"] = masks(2, shape)
        else:
            window = Window(model, SGD())
        window.accumulate(given)
        gradients[memory] = values(window.gradients)
        assert all(np.isfinite(gradient).all() for gradient in gradients[memory])
    if config.same_bits_in_every_graph:
        assert all(all(map(np.array_equal, each, gradients[STORE])) for each in gradients.values())
