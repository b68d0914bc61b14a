"""The references of job=verify share no code with what they check."""

import ast
from pathlib import Path

from accumtrain.measure.verify import references


def test_the_rules_that_updates_are_compared_with_share_no_code_with_them():
    """They read the keys of the configurations, and nothing else of optimizers and schedules."""
    tree = ast.parse(Path(references.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {node.module for node in imports} | {
        a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names
    }
    assert not any(module.startswith("tensorflow") for module in modules)
    names = [alias.name for node in imports if node.module.startswith("accumtrain.") for alias in node.names]
    assert names
    assert all(name.endswith("Config") for name in names)
