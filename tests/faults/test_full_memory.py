"""A run whose weights leave little of its memory limit: it is continued, tested and begun with weights within it."""

import shutil

import pytest

from tests.programs import output_of

# weights and gradient buffers take 181 MB, a micro-step 24 MB more; the weights once more would be 90 MB
TIGHT = (
    *("data=synthetic", "data.train_examples=64", "data.test_examples=16", "data.val_fraction=0.25", "eval.every=1"),
    *("model=resnet50", "data.image_size=32", "batch_size=4", "accum.steps=1", "train.steps=2", "checkpoint.every=1"),
    *("log.images=0", "device.memory_limit_mb=235"),
)


def train(folder, name, *others):
    """Runs the command, and returns the bytes of its last state."""
    output_of("-m", "accumtrain", *TIGHT, f"run.dir={folder}", f"run.name={name}", *others)
    (state,) = (folder / name / "checkpoints" / "step-2").glob("state.data*")
    return state.read_bytes()


@pytest.mark.slow
def test_a_limit_that_a_run_fits_into_holds_for_all_that_becomes_of_it(tmp_path):
    whole = train(tmp_path, "one")  # at its end it restores the best state, then the last
    checkpoints = tmp_path / "one" / "checkpoints"
    for later in ("step-2", "best"):
        shutil.rmtree(checkpoints / later)
    assert train(tmp_path, "one") == whole, "continued from step-1"
    train(tmp_path, "other", "model.weights=one")
