"""What optimizers are compared with is written apart from them."""

from pathlib import Path

from accumtrain.measure.verify import references


def test_the_rules_that_updates_are_compared_with_share_no_code_with_them():
    source = Path(references.__file__).read_text()
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("from ", "import "))}
    assert not any(name.startswith(("accumtrain.optim", "tensorflow")) for name in imported)
