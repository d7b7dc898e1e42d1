"""The tally of an attack."""

from __future__ import annotations

import json

from attack import Failure, Tally


def test_a_tally_counts_by_kind_and_keeps_what_repeats_a_failure() -> None:
    tally = Tally()
    tally.count("bit flip", 3)
    tally.count("truncation")
    tally.fail("bit flip", "seed 1, draw 2", ValueError("no"))
    assert tally.failures == [Failure("bit flip", "seed 1, draw 2", "no")]
    assert json.loads(json.dumps(tally.to_json()))["tried"] == {"bit flip": 3, "truncation": 1}
