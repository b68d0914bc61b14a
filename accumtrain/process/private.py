"""Names of TensorFlow that are not public, and have no public way. Imported only where TensorFlow may be, too."""

from __future__ import annotations

import tensorflow as tf

# the runtime itself cuts a graph at it; tf.raw_ops has none
from tensorflow.compiler.tf2xla.python.xla import optimization_barrier

# options of the graph optimizer; tf.config.optimizer sets them for all functions and threads, and two trace at once
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

# the strategy of several workers; the public one takes one CPU device of each
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
    coordination_config_pb2,  # its module differs between releases
)
from tensorflow.python.eager.context import FunctionCallOptions, context

# tells if a tape or a forward accumulator may be recording
from tensorflow.python.eager.record import could_possibly_record

# tells if a graph, or one around it, is compiled by XLA
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

# tells if oneDNN's kernels compute; tf.sysconfig.get_build_info does not
from tensorflow.python.util._pywrap_util_port import IsMklEnabled

__all__ = [
    "CollectiveAllReduceExtended",
    "FunctionCallOptions",
    "GraphOrParentsInXlaContext",
    "IsMklEnabled",
    "RewriterConfig",
    "context",
    "coordination_config_pb2",
    "could_possibly_record",
    "graph_of_function",
    "is_initialized",
    "needs_no_merge_call",
    "optimization_barrier",
]


def is_initialized() -> bool:
    """Return whether TensorFlow has initialised its devices. The public getters do that themselves."""
    return bool(context()._initialized)


def graph_of_function(graph: tf.Graph, name: str) -> tf.Graph:
    """Return the graph of a function that `graph` calls, with its shapes; a function's definition has none."""
    return graph._get_function(name).graph


def needs_no_merge_call() -> bool:
    """Return whether all replicas of the strategy are in one function, so that they need not be merged."""
    return bool(tf.__internal__.distribute.strategy_supports_no_merge_call())
