"""Two mirrored replicas with two micro-steps each make the update of one device with four."""

import json

import pytest

from tests.programs import output_of

PROGRAM = ("-m", "tests.engine.replicas")
SUMS, STATE = ("loss", "gradient", "statistics sum"), ("weight", "optimizer state", "statistics")
CASES = {
    ("group", "float64", "float64"): 1e-12,
    ("batch", "float32", "float32"): 1e-4,
    ("batch", "float32", "float64"): 0,  # sums in float64 of numbers in float32: no order of adding them changes a bit
}


@pytest.mark.slow
def test_what_is_not_finite_on_one_replica_is_found():
    found = dict(line.split(",", 1) for line in output_of(*PROGRAM, "plant_nan", *SUMS, *STATE).splitlines())
    assert {place: found[place] for place in SUMS} == dict.fromkeys(SUMS, "False,True,True"), "nothing is changed"
    assert {place: found[place] for place in STATE} == dict.fromkeys(STATE, "True,False,False")


@pytest.mark.slow
def test_an_overflow_of_one_replica_skips_the_window_on_all():
    output_of(*PROGRAM, "overflow")


@pytest.fixture(scope="module")
def trained():
    """Train each case by two replicas and by one device, all in one process."""
    pairs = json.loads(output_of(*PROGRAM, "train_cases", json.dumps(list(CASES))).splitlines()[-1])
    return dict(zip(CASES, pairs, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_two_replicas_train_as_one_device(trained, case):
    two, one = trained[case]
    assert two["loss"] == pytest.approx(one["loss"], rel=CASES[case])

    def flat(values):
        return [number for value in values for number in (flat(value) if isinstance(value, list) else [value])]

    assert flat(two["values"]) == pytest.approx(flat(one["values"]), rel=CASES[case], abs=CASES[case])
