"""job=verify with JAX: gradients that agree pass, and another one misses the bound."""

from functools import partial

import pytest

from accumtrain.dispatch import run
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.errors import VerificationError
from accumtrain.measure.verify.on_jax import BOUND, check_on_jax
from accumtrain.measure.verify.window import WindowOfExamples
from accumtrain.optim.config import SgdConfig
from accumtrain.process import environment
from tests.engine.small import examples, lenet, resnet20, window_for

pytest.importorskip("jax")
pytestmark = pytest.mark.xla

SHAPE, STEPS, BATCH = (8, 8, 1), 2, 4
SGD = SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.0)


def window_of(policy, model=lenet):
    return window_for(model(memory=policy), SGD, SHAPE, micro_steps=STEPS)


def checks(window_for_policy, precision="float32"):
    """The checks, with TensorFlow's runtime in the place of JAX."""
    arrays = {name: tensor.numpy() for name, tensor in examples(STEPS * BATCH, SHAPE).items()}
    window = WindowOfExamples(arrays, STEPS, BATCH)
    return check_on_jax(window_for_policy, TensorFlowRuntime, ("store", "recompute"), window, precision)


def test_each_check_has_its_bound():
    found = checks(window_of)
    assert [check.name for check in found] == [
        "gradient against TensorFlow's",
        "gradient of 2 micro-batches against one batch",
        "gradient of memory=recompute against memory=store",
    ]
    assert [check.bound for check in found] == [BOUND["float32"]] * 3
    assert all(check.passed for check in found)
    assert found[0].measured == 0.0, "the same runtime"


def test_another_gradient_misses_the_bound():
    def differing(policy):
        window = window_of(policy)
        if policy == "recompute":
            for variable in window.variables_:
                variable.assign(1.1 * variable)
        return window

    assert [check.passed for check in checks(differing)] == [True, True, False]


def test_with_batch_norm_the_split_has_no_bound():
    found = checks(partial(window_of, model=partial(resnet20, units=(1,))))
    assert [check.passed for check in found] == [True, None, True]
    assert found[1].note.startswith("no bound can hold with batch norm")


def test_in_bfloat16_tensorflows_gradient_is_no_measure():
    found = checks(window_of, "bfloat16")
    assert [check.bound for check in found] == [None, BOUND["bfloat16"], BOUND["bfloat16"]]
    assert found[0].note.startswith("no bound can hold in bfloat16")


@pytest.mark.slow
def test_a_run_is_verified_by_jax(compose, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "prepare", lambda device, **_: None)
    chosen = ("model=lenet5", "data=digits", "precision=float64", "batch_size=8", "accum.steps=2", "device=cpu")
    where = ("job=verify", "device.runtime=jax", f"run.dir={tmp_path}", "run.name=one")
    asked = compose(*chosen, *where)
    result = run(asked)
    assert result["passed"] is True
    assert [check["bound"] for check in result["checks"]] == [1e-9] * 3
    assert "JAX" in result["device"]
    monkeypatch.setitem(BOUND, "float64", -1.0)
    with pytest.raises(VerificationError, match="3 of 3 checks failed"):
        run(asked)
