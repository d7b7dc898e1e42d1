"""The groups of users that an evaluation reports on, and how their query users are trained on.

`probe` and `probe-new` hold the users with fewer than `PROBE_ROWS` training rows, key users or not:
one fixed group for splits that differ in their key users. `cold-…` are the tasks of the dataset
ml-1m-cold: ten ratings of each cold user, predicted from features and so many other ratings.
"""

from __future__ import annotations

from collections.abc import Mapping

from idcf.data.datasets.cold_start import SUPPORT_SIZES
from idcf.training.train import QueryUserMode

USER_GROUPS: Mapping[str, QueryUserMode] = {  # group -> how its query users take part in training
    "new": "new",
    "few-shot": "few-shot",
    "all": "few-shot",
    "probe": "few-shot",
    "probe-new": "new",
    **dict.fromkeys(SUPPORT_SIZES, "new"),
}
PROBE_ROWS = 20


def _ratings(n: int) -> str:
    """Return how many ratings are known, in words."""
    if n > 10:
        return "all their other ratings"
    return f"{n or 'no'} other rating{'s' if n != 1 else ''}"


GROUP_DESCRIPTIONS = {
    "new": "new users (absent from training, known by their histories alone)",
    "few-shot": "few-shot users (their few training rows are trained on)",
    "all": "all users (every test row)",
    "probe": "light users (fewer than 20 training rows, which are trained on)",
    "probe-new": "light users (fewer than 20 training rows, absent from training)",
    **{
        group: f"cold users (ten ratings of each, known by features and {_ratings(n)})"
        for group, n in SUPPORT_SIZES.items()
    },
}
