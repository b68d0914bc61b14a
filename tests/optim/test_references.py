"""What optimizers and schedules are compared with is written apart from them."""

import ast
from pathlib import Path

from accumtrain.measure.verify import references


def test_the_rules_that_updates_are_compared_with_take_nothing_but_configurations():
    nodes = ast.walk(ast.parse(Path(references.__file__).read_text()))
    imported = {
        f"{node.module}.{name.name}" for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names
    }
    assert not [name for name in imported if name.startswith("tensorflow")]
    assert not [name for name in imported if name.startswith("accumtrain.") and not name.endswith("Config")]
