"""Every task: what a run keeps makes its objective and answer again, and targets, answers and reports fit together."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data.config import DataConfig, NpzConfig
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.inputs.scenes import make_scenes
from accumtrain.data.inputs.tokens import APART, Tokens
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.masks.source import MaskedArrays
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import ArraySplit, Dataset
from accumtrain.data.text.encode import Encoded, no_label
from accumtrain.data.text.rows import fill_rows, make_documents
from accumtrain.data.text.token_split import TokenSplit
from accumtrain.data.text.vocabulary import open_vocabulary
from accumtrain.engine.losses import weighted_sums
from accumtrain.tasks.answer import build_answer
from accumtrain.tasks.config import TASKS
from accumtrain.tasks.objective import build_objective

COUNT, NAMES = 12, ["a", "b", "c"]
RANDOM = np.random.default_rng(0)
BYTES = open_vocabulary("bytes")
TARGETS = {
    "classify": np.arange(COUNT, dtype=np.int32) % 3,
    "multilabel": RANDOM.integers(0, 2, [COUNT, 3]).astype(np.float32),
    "segment": RANDOM.integers(-1, 3, [COUNT, 4, 4]).astype(np.int32),
    "regress": RANDOM.normal(50.0, 9.0, [COUNT, 3]).astype(np.float32),
}
OF_TOKENS = ("masked_tokens", "next_token")
OF_POSITIONS = (*OF_TOKENS, "segment")
of_every_task = pytest.mark.parametrize("name", [*TARGETS, *OF_TOKENS])


def config_of(name):
    entry = TASKS[name]
    keys = NpzConfig(path="") if name == "segment" else DataConfig(kind="given")
    return Config(task=entry.config(), loss=entry.loss(), data=keys)


def stored_of(name):
    """Data with targets as a source stores them."""
    if name == "next_token":
        ids = [RANDOM.integers(97, 122, 11).astype(np.int32) for _ in range(COUNT)]
        documents = make_documents(Encoded(list(map(str, range(COUNT))), ids, no_label(COUNT)), skips=False)
        split, inputs = fill_rows(documents, 10, BYTES.size, packing=False), Tokens((10,), BYTES, rows=APART)
        return Dataset(split, split, BYTES.size, inputs=inputs, targets=TASKS[name].targets)
    if name == "masked_tokens":
        tokens = RANDOM.integers(97, 122, [COUNT, 10]).astype(np.int32)
        split, inputs, names = TokenSplit(tokens, None, []), Tokens((10,), BYTES), []
        return Dataset(split, split, BYTES.size, class_names=names, inputs=inputs, targets=TASKS[name].targets)
    if name == "segment":
        split, keys = MaskedArrays(np.zeros([COUNT, 4, 4, 1], np.uint8), TARGETS[name], 3, 255), NpzConfig(path="")
        inputs = make_scenes(keys, (4, 4, 1), 255)
        return Dataset(split, split, 3, class_names=NAMES, inputs=inputs, targets=TASKS[name].targets)
    split = ArraySplit(RANDOM.normal(size=[COUNT, 4]).astype(np.float32), TARGETS[name])
    return Dataset(split, split, 3, class_names=NAMES, inputs=Arrays((4,)), targets=TASKS[name].targets)


def answered(objective, answer):
    """A batch of evaluation, and outputs for it as a model would give them, with their answers."""
    batch = next(iter(make_eval_batches(objective.data, batch=COUNT)))
    places = batch["targets"].shape[1:] if objective.config.task.kind in OF_POSITIONS else []
    shape = (COUNT, *places, len(objective.data.classes))
    outputs = tf.constant(RANDOM.normal(size=shape), tf.float32)
    return batch, outputs, answer(batch["inputs"], outputs)


@pytest.fixture
def objective(name):
    return build_objective(config_of(name), stored_of(name))


@pytest.fixture
def answer(objective):
    return build_answer(objective.config, objective.trained_on, {})


def test_every_task_is_tried():
    assert {*TARGETS, *OF_TOKENS} == {entry.name for entry in TASKS}, f"each task needs TARGETS in {__file__}"


@of_every_task
def test_what_a_run_keeps_makes_it_again(name, objective, answer):
    kept = TrainedOn.from_json(json.loads(json.dumps(objective.trained_on.as_json())), objective.config.data)
    again = build_objective(objective.config, objective.stored, kept.facts)
    one, other = (next(iter(make_eval_batches(each.data, batch=COUNT))) for each in (objective, again))
    tf.nest.map_structure(np.testing.assert_array_equal, one, other)
    batch, outputs, found = answered(objective, answer)
    np.testing.assert_array_equal(build_answer(objective.config, kept, {})(batch["inputs"], outputs), found)


@of_every_task
def test_losses_and_metrics_take_its_targets(name, objective, answer):
    batch, outputs, _ = answered(objective, answer)
    functions = [objective.loss, *objective.means.values(), *(one for one, _ in objective.of_means("test").values())]
    assert np.isfinite(np.array(weighted_sums(functions, outputs, batch))).all()
    if name not in OF_POSITIONS:  # which have a target for each position
        assert tuple(batch["targets"].shape[1:]) == objective.target_shape


@of_every_task
def test_a_guess_is_of_its_splits(name, objective):
    assert set(objective.guess()) >= {"train", "test"}
    assert all(np.isfinite(list(objective.guess().values())))


@of_every_task
def test_its_words_fit_its_answers(name, objective, answer):
    _, _, found = answered(objective, answer)
    assert tuple(found.shape) == (COUNT, *answer.shape)
    assert found.dtype == tf.float32
    told = answer.tell(answer.keep(found.numpy(), []))
    assert len(told.rows) == len(told.records) == len(told.shown) == COUNT
    assert {len(row) for row in told.rows} == {len(told.columns)}
    assert {len(row) for row in told.shown} == {len(told.titles)}
    json.dumps([told.records, told.summary, answer.texts()])


@pytest.mark.parametrize("name", TARGETS)
def test_its_layer_of_keras_makes_its_answers(name, objective, answer):
    _, outputs, found = answered(objective, answer)
    layer = answer.keras_layer()
    assert layer.name == answer.name
    np.testing.assert_allclose(layer(outputs), found, rtol=1e-6)


@of_every_task
def test_its_report_is_json_and_draws(name, objective, answer, tmp_path):
    """What evaluations collect of a split comes back as results of it."""
    collectors = objective.collectors("test", COUNT, 1, reports=True)
    batch, outputs, _ = answered(objective, answer)
    for collector in collectors:
        collector.update(batch, outputs)
    facts = dict(answer.facts)
    for collector in collectors:
        assert set(collector.take()) == set(collector.names)
        facts |= collector.facts
    report = objective.report(collectors, "test", facts)
    json.dumps(report.describe())
    report.show()
    assert all(picture.exists() for picture in report.draw("a title", tmp_path, "_end"))


@of_every_task
def test_the_longest_batches_have_the_same_targets(name, objective):
    buckets = replace(objective.stored.inputs, buckets=(5,)) if name in OF_TOKENS else objective.stored.inputs
    longest = build_objective(objective.config, replace(objective.stored, inputs=buckets), objective.facts).longest
    assert longest.facts == objective.facts
    assert longest.stored.inputs == objective.stored.inputs
