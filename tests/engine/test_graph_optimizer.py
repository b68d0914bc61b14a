"""The settings of the graph optimizer hold for one function in one thread; a function can be traced ahead."""

import threading

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.eager.context import context

from accumtrain.engine.compiled_function import FUSION_ONLY, NO_GRAPH_OPTIMIZER, CompiledFunction


def settings():
    """Return the settings under which this thread compiles functions now."""
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


@pytest.mark.parametrize("ahead", [False, True], ids=["at the call", "ahead"])
def test_an_error_comes_out_of_the_call_and_settings_are_undone(ahead):
    def function(x):
        raise ValueError("no")

    before = settings()
    compiled = CompiledFunction(function, NO_GRAPH_OPTIMIZER)
    if ahead:
        compiled.trace_ahead(tf.constant(1))
    with pytest.raises(ValueError, match="no"):
        compiled(tf.constant(1))
    assert settings() == before


def test_traced_ahead_once_while_another_runs_under_its_own_settings():
    seen, may_end = [], threading.Event()

    def slow(x):
        seen.append(settings().disable_meta_optimizer)
        assert may_end.wait(60)
        seen.append(settings().disable_meta_optimizer)
        return x + 1

    ahead = CompiledFunction(slow, NO_GRAPH_OPTIMIZER)
    ahead.trace_ahead(tf.constant(1))

    def other(x):
        seen.append(settings().disable_meta_optimizer)
        return x * 2

    assert CompiledFunction(other, FUSION_ONLY)(tf.constant(3)).numpy() == 6
    may_end.set()
    assert ahead(tf.constant(1)).numpy() == 2
    assert sorted(seen) == [False, True, True]
    assert ahead.experimental_get_tracing_count() == 1
