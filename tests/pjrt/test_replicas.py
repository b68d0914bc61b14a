"""A replica on each of several devices of JAX. A process of its own, as JAX divides a CPU once."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.programs import output_of, run_python

pytest.importorskip("jax")
pytestmark = pytest.mark.xla

ROOT = Path(__file__).parents[2]
RUN = "import sys; from accumtrain.cli.command import command; sys.exit(command())"
SAME = ("model=lenet5", "precision=float64", "ema.decay=0.9", "train.steps=4", "batch_size=32", "device.runtime=jax")
COUNT_SUMS = """
import re
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
import tensorflow as tf
from accumtrain.pjrt.runtime import JaxRuntime
from tests.engine.small import lenet, window_for, examples
from accumtrain.optim.config import SgdConfig

window = window_for(lenet(), SgdConfig(), (8, 8, 3), micro_steps=2)
runtime = JaxRuntime(jax.devices())
step = runtime.build_step(window)
step.prepare(iter(tf.data.Dataset.from_tensors(dict(examples(8, (8, 8, 3)))).repeat()))
texts = [program._compiled.as_text() for program in (step.programs.micro_step, step.programs.update)]
print([len(re.findall(r" all-reduce(?:-start)?[(]", text)) for text in texts])
"""


def run(folder, *overrides):
    output_of("-c", RUN, *overrides, cwd=folder)


def train(folder, *overrides):
    """The variables of a checkpoint after a training, and the results of the best state."""
    run(folder, *SAME, "run.name=x", *overrides)
    run(folder, "job=evaluate", "run.name=x", "device.runtime=jax", *overrides[:2])
    path = folder / "runs" / "x"
    reader = tf.train.load_checkpoint(str(path / "checkpoints" / "step-4" / "state"))
    names = [name for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name]
    return {name: reader.get_tensor(name) for name in names}, json.loads((path / "evaluation.json").read_text())


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), "device=cpu", "device.virtual=null", "accum.steps=4")


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_two_replicas_make_the_update_of_one(steps, one_device, tmp_path):
    expected, evaluation = one_device
    found, of_two = train(tmp_path, "device=mirrored", "device.virtual=2", f"accum.steps={steps}")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert of_two["test"]["accuracy"] == evaluation["test"]["accuracy"]
    assert of_two["classes"] == evaluation["classes"]
    assert [row["index"] for row in of_two["mistakes"]] == [row["index"] for row in evaluation["mistakes"]]


@pytest.mark.slow
def test_replicas_are_summed_once_per_update():
    """XLA joins the sums of all buffers in the commit."""
    assert output_of("-c", COUNT_SUMS, cwd=ROOT).split("\n")[-2] == "[0, 1]"


def test_devices_of_a_process_can_not_change(tmp_path):
    program = (
        "import jax; jax.config.update('jax_num_cpu_devices', 1); jax.devices()\n"
        f"import sys; sys.argv = {['accumtrain', *SAME, 'device=mirrored', 'device.virtual=2']!r}\n{RUN}"
    )
    done = run_python("-c", program, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "other devices in this process already; for a sweep over devices add hydra/launcher=joblib" in done.stderr
