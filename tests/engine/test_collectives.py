"""One all-reduce per update, of one vector, whatever accum.steps is."""

import json

import pytest

from accumtrain.cli.workers import find_free_ports
from tests.programs import output_of

SCRIPT = """
import json
import sys

import tensorflow as tf

from accumtrain.devices.config import MultiworkerConfig
from accumtrain.optim.config import SgdConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.step import Step
from tests.engine.small import examples, resnet20, window_for

devices = resolve_devices(MultiworkerConfig(virtual=2, workers=[sys.argv[1]], index=0, timeout=30))


def batches(context):
    dataset = tf.data.Dataset.from_tensor_slices(examples(8, (8, 8, 1)))
    return dataset.batch(4, drop_remainder=True).repeat()


def collectives(function):
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return [node for node in nodes if node.op.startswith("Collective")]


def update(steps):
    with devices.strategy.scope():
        sgd = SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.9)
        window = window_for(resnet20("batch", units=(1, 1)), sgd, (8, 8, 1), micro_steps=steps)
        step = Step(window)
    stream = iter(devices.strategy.distribute_datasets_from_function(batches))
    accumulate = step.programs.compiled_micro_steps.get_concrete_function(stream, tf.constant(steps))
    commit = step.programs.compiled_commit.get_concrete_function()
    step.accumulate(stream, steps)
    reductions = [op for op in commit.graph.get_operations() if op.type.startswith("CollectiveReduce")]
    shapes = [op.inputs[0].shape.as_list() for op in reductions]
    return {
        "accumulate": len(collectives(accumulate)), "commit": [node.op for node in collectives(commit)],
        "shapes": shapes, "params": window.model.params, "examples": float(step.commit()["examples"]),
    }


print(json.dumps([update(int(steps)) for steps in sys.argv[2:]]))
"""
STEPS = (1, 8)


@pytest.fixture(scope="module")
def updates():
    """By accum.steps, all in one process: logical devices and a cluster have to be set before TensorFlow runs."""
    (port,) = find_free_ports(1)
    out = output_of("-c", SCRIPT, f"localhost:{port}", *STEPS, timeout=120)
    return dict(zip(STEPS, json.loads(out.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("steps", STEPS)
def test_an_update_makes_one_all_reduce_of_one_vector(updates, steps):
    found = updates[steps]
    assert (found["accumulate"], len(found["commit"])) == (0, 2), "each of the two replicas takes part in one"
    ((size,), (same,)) = found["shapes"]
    assert size == same
    assert 0 < size - found["params"] < 1024, "parameters, batch statistics and a few scalars"
    assert found["examples"] == 8 * steps
