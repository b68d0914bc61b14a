"""The roles of keys: where they stand, and those of kinds from outside."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated

import pytest

import accumtrain
from accumtrain.config.compiled import CompiledModelConfig
from accumtrain.config.roles import keys_with, list_roles
from accumtrain.config.schema import Config
from accumtrain.fields import POSITIVE, Constraint, Role, constraints_of, roles_of
from accumtrain.optim.config import OPTIMIZERS, OptimConfig
from accumtrain.runs.names import differences, fits_state, learned_values


@dataclass(kw_only=True)
class LionConfig(OptimConfig):
    lr: Annotated[float | None, POSITIVE] = 1e-4
    beta: float = 0.9
    floor: Annotated[float, POSITIVE, Role.RULE] = 0.1


@pytest.fixture
def lion(monkeypatch):
    """Configurations with an optimizer from outside."""
    monkeypatch.setattr(OPTIMIZERS, "entries", dict(OPTIMIZERS.entries))
    registered = accumtrain.register_optimizer("lion", "mine:Lion", LionConfig)
    return lambda **keys: replace(Config(), optim=registered(**keys))


def test_a_role_is_no_constraint():
    assert constraints_of(LionConfig)["floor"] == (POSITIVE,)
    assert all(isinstance(rule, Constraint) for rules in constraints_of(Config).values() for rule in rules)


def test_a_key_of_a_kind_from_outside_is_learned_unless_it_says_more(lion):
    roles = list_roles(asdict(lion()))
    assert roles["optim.kind"] == roles["optim.beta"] == Role.LEARNED
    assert roles["optim.floor"] == Role.RULE


def test_a_key_that_is_declared_anew_keeps_its_role():
    assert roles_of(LionConfig)["lr"] == Role.RULE


def test_the_state_fits_other_values_of_rules_alone(lion):
    before = learned_values(lion())
    assert fits_state(before, lion(floor=0.2, lr=1.0))
    assert not fits_state(before, lion(beta=0.5))


def test_a_key_that_no_class_declares_has_the_role_of_its_group():
    values = asdict(Config())
    values["model"] |= {"kind": "of_another_program", "depth": 3}
    values["device"] |= {"of_tomorrow": 1}
    roles = list_roles(values)
    assert roles["model.depth"] == Role.LEARNED | Role.MEASURED
    assert roles["model.memory"] == Role.MEMORY
    assert "device.of_tomorrow" in keys_with(Role.COMMAND, values)


def test_micro_batches_are_learned_where_their_sum_is_the_update():
    assert "accum.steps" not in learned_values(Config())
    summed = replace(Config(), accum=replace(Config().accum, reduction="sum"))
    assert learned_values(summed)["accum.steps"] == 1


def test_a_compiled_model_may_have_another_title():
    before, now = (replace(Config(), model=CompiledModelConfig(title=title)) for title in ("a", "b"))
    assert not differences(learned_values(before), learned_values(now))
