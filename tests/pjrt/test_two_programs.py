"""benchmarks/two_programs.py: written with TensorFlow, run by JAX in other processes."""

import json
from pathlib import Path

import pytest

from tests.programs import output_of

pytest.importorskip("jax")
pytestmark = [pytest.mark.xla, pytest.mark.slow]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = (
    f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import two_programs; two_programs.main();"
    "assert not {'tensorflow', 'accumtrain'} & set(sys.modules)"
)


def test_a_run_needs_no_tensorflow_and_goes_on_with_the_same_bits(tmp_path):
    folder, whole, half = (str(tmp_path / name) for name in ("lenet", "whole.npz", "half.npz"))
    given = ["--data", "12", "--highest", folder, "model=lenet5", "batch_size=32", "accum.steps=2"]
    output_of(str(BENCHMARKS / "two_programs.py"), "write", *given)

    def run(*arguments):
        return json.loads(output_of("-c", RUN, "run", folder, *arguments).splitlines()[-1])

    losses = run("--updates", "12", "--save", whole)["losses"]
    assert losses[1] < losses[0]
    run("--updates", "6", "--save", half)
    continued = run("--updates", "12", "--first", "6", "--restore", half, "--compare", whole)
    assert (continued["losses"][1], continued["unequal_variables"]) == (losses[1], 0)
