"""A schedule gives each update the factor of earlier versions, to the bit on the machine that wrote them down."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.machine import machine
from tests.optim.stored_factors import CONFIGS, FILE, TOTALS, factors

STORED = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", CONFIGS)
def test_factors_are_the_stored_ones(name):
    for total in TOTALS:
        stored = np.array(STORED[f"{name}, {total} updates"], np.uint32)
        now = factors(CONFIGS[name], total)
        if machine() == STORED["machine"]:
            assert now.view(np.uint32).tolist() == stored.tolist(), total
        else:  # the cosine of another processor
            np.testing.assert_allclose(now, stored.view(np.float32), rtol=1e-6, atol=1e-7)
