"""The references of job=verify share no code with what they check."""

import ast
from pathlib import Path

from accumtrain.measure.verify import references


def test_the_rules_that_updates_are_compared_with_share_no_code_with_them():
    """They know keys alone: no formula of a schedule, no optimizer and no TensorFlow."""
    source = Path(references.__file__).read_text()
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        alias.name
        for node in imports
        for alias in node.names
        if "accumtrain.optim" in (getattr(node, "module", "") or "")
    }
    assert names
    assert all(name.endswith("Config") for name in names)
    assert "factor_at" not in source
    assert "tensorflow" not in source
