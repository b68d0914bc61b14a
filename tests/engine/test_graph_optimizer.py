"""The settings of the graph optimizer hold for one function in one thread; what is compiled ahead does not run."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.eager.cancellation import CancellationManager
from tensorflow.python.eager.context import context
from tensorflow.python.eager.execute import execute_with_cancellation

from accumtrain.engine import graph_optimizer
from accumtrain.engine.graph_cache import GraphCache
from accumtrain.engine.graph_optimizer import FUSION_ONLY, NO_GRAPH_OPTIMIZER, CompiledFunction


def settings():
    """What the functions that this thread calls now are compiled under."""
    return ConfigProto.FromString(context().function_call_options.config_proto_serialized).graph_options.rewrite_options


@pytest.mark.parametrize("options", [FUSION_ONLY, NO_GRAPH_OPTIMIZER], ids=["fusion only", "nothing"])
def test_settings_hold_within_and_are_undone(options):
    seen = []

    def function(x):
        seen.append(settings())
        return x + 1

    before = settings()
    assert CompiledFunction(function, options)(tf.constant(1)).numpy() == 2
    for field, value in options.ListFields():
        assert getattr(seen[0], field.name) == value
        assert getattr(before, field.name) != value
    assert settings() == before


def test_settings_are_undone_after_an_error():
    def function(x):
        raise ValueError("no")

    before = settings()
    with pytest.raises(ValueError, match="no"):
        CompiledFunction(function, NO_GRAPH_OPTIMIZER)(tf.constant(1))
    assert settings() == before


def test_traced_ahead_once_while_another_runs_under_its_own_settings():
    seen, may_end = [], threading.Event()

    def slow(x):
        seen.append(settings().disable_meta_optimizer)
        assert may_end.wait(60)
        seen.append(settings().disable_meta_optimizer)
        return x + 1

    ahead = CompiledFunction(slow, NO_GRAPH_OPTIMIZER)
    ahead.prepare_ahead(tf.constant(1))

    def other(x):
        seen.append(settings().disable_meta_optimizer)
        return x * 2

    assert CompiledFunction(other, FUSION_ONLY)(tf.constant(3)).numpy() == 6
    may_end.set()
    assert ahead(tf.constant(1)).numpy() == 2
    assert sorted(seen) == [False, True, True]
    assert ahead.experimental_get_tracing_count() == 1


@pytest.fixture(params=[1, 2], ids=["one replica", "two replicas"])
def strategy(request):
    devices = [f"CPU:{number}" for number in range(request.param)]
    return tf.distribute.MirroredStrategy(devices) if request.param > 1 else tf.distribute.get_strategy()


def test_what_is_compiled_ahead_does_not_run(strategy):
    with strategy.scope():
        ran = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    numbers = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2)))

    def function(numbers):
        strategy.run(lambda _: ran.assign_add(1), args=(next(numbers),))

    compiled = CompiledFunction(function, FUSION_ONLY)
    compiled.prepare_ahead(numbers)
    compiled.prepare(numbers)  # waits for it
    assert ran.numpy() == 0
    compiled(numbers)
    assert ran.numpy() == 1
    assert compiled.experimental_get_tracing_count() == 1
    (first, *_) = strategy.experimental_local_results(next(numbers))
    assert first.numpy()[0] == 2  # a call has taken the batch of 0 and 1


@pytest.mark.parametrize("compiles", [True, False])
def test_an_operation_without_a_kernel_is_met_where_the_graph_is_compiled(compiles):
    def function(x):
        return tf.raw_ops.NcclAllReduce(input=x, reduction="sum", num_devices=1, shared_name="")

    compiled = CompiledFunction(function, NO_GRAPH_OPTIMIZER)
    compiled.prepare_ahead(tf.constant(1.0), compiles=compiles)
    with pytest.raises(tf.errors.InvalidArgumentError, match="NcclAllReduce") if compiles else nullcontext():
        compiled.prepare(tf.constant(1.0))


def test_a_call_that_runs_although_it_is_cancelled_is_an_error(monkeypatch):
    monkeypatch.setattr(CancellationManager, "start_cancel", lambda manager: None)
    compiled = CompiledFunction(lambda x: x + 1, NO_GRAPH_OPTIMIZER)
    compiled.prepare_ahead(tf.constant(1))
    with pytest.raises(RuntimeError, match="ran although its call was cancelled"):
        compiled(tf.constant(1))


def test_compiled_ahead_under_the_settings_of_a_call(monkeypatch):
    """Under others it would be compiled once more when it is called."""
    seen = []

    def execute(name, outputs, inputs, attributes, *others):
        seen.append(dict(zip(attributes[::2], attributes[1::2], strict=True)))
        return execute_with_cancellation(name, outputs, inputs, attributes, *others)

    monkeypatch.setattr(graph_optimizer, "execute_with_cancellation", execute)
    compiled = CompiledFunction(lambda x: x + 1, NO_GRAPH_OPTIMIZER)
    compiled.prepare_ahead(tf.constant(1))
    compiled.prepare(tf.constant(1))
    (attributes,) = seen
    assert ConfigProto.FromString(attributes["config_proto"]).graph_options.rewrite_options.disable_meta_optimizer


def test_what_is_started_ahead_waits_for_what_was_started_before():
    def function(x):
        if x.dtype == tf.int64:
            raise ValueError("no")
        return x + 1

    compiled = CompiledFunction(function, NO_GRAPH_OPTIMIZER)
    compiled.prepare_ahead(tf.constant(1, tf.int64))
    compiled.prepare_ahead(tf.constant(1, tf.int32))
    with pytest.raises(ValueError, match="no"):
        compiled.prepare(tf.constant(1, tf.int32))


def test_where_nothing_is_kept_nothing_is_traced_for_it(tmp_path):
    traced = []

    def function(x):
        traced.append(x.dtype)
        return {"y": x + 1}

    compiled = CompiledFunction(function, NO_GRAPH_OPTIMIZER, GraphCache({}, [], tmp_path))
    compiled.compile_kept_ahead(tf.constant(1, tf.int64))
    compiled.prepare(tf.constant(1, tf.int32))  # waits for it
    assert traced == [tf.int32]


def test_an_error_ahead_comes_out_of_the_call():
    def function(x):
        raise ValueError("no")

    compiled = CompiledFunction(function, NO_GRAPH_OPTIMIZER)
    compiled.prepare_ahead(tf.constant(1))
    with pytest.raises(ValueError, match="no"):
        compiled(tf.constant(1))
