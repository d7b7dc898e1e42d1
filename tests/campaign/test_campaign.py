"""A seeded share of every attack of the campaign."""

from __future__ import annotations

import pytest
from campaign import ATTACKS, run_attack

SHARE = 0.03
SEED = 20_261_119


@pytest.mark.parametrize("name", ATTACKS)
def test_a_share_of_an_attack_finds_nothing(name: str) -> None:
    tally = run_attack(name, SEED, SHARE)
    assert sum(tally.tried.values()) > 0
    assert tally.failures == []
