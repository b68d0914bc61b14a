"""Everything that accumtrain takes of TensorFlow and that is not public is there: this names what is gone."""

import ast
import importlib
from pathlib import Path

import tensorflow as tf

from accumtrain.process import private

ATTRIBUTES = {  # by what has them
    "tf.Graph": (tf.Graph(), ["_get_function"]),
    "tf.__internal__.distribute": (tf.__internal__.distribute, ["strategy_supports_no_merge_call"]),
    "context()": (
        private.context(),
        ["_initialized", "config", "function_call_options", "configure_coordination_service"],
    ),
    "context().function_call_options": (private.context().function_call_options, ["executor_type"]),
    "coordination_config_pb2": (private.coordination_config_pb2, ["CoordinatedJob"]),
    "CollectiveAllReduceExtended": (private.CollectiveAllReduceExtended, ["_initialize_local_devices"]),
}


def test_nothing_is_gone():
    tree = ast.parse(Path(private.__file__).read_text())
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    named = {f"{node.module}.{alias.name}" for node in imported for alias in node.names}
    assert len(named) == 9
    gone = {name for name in named if not is_there(*name.rsplit(".", 1))}
    gone |= {
        f"{of}.{name}" for of, (holder, names) in ATTRIBUTES.items() for name in names if not hasattr(holder, name)
    }
    assert not gone, f"TensorFlow {tf.__version__} has no {', '.join(sorted(gone))}"


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False
