"""The groups of users that an evaluation reports on.

`new`       query users: absent from training, known by their histories alone.
`few-shot`  query users whose training rows are trained on.
`all`       every test row; trained as `few-shot`.
`probe`     users with fewer than `PROBE_ROWS` training rows, key users or not: one fixed group for
            splits that differ in their key users. Trained as `few-shot`; `probe-new` as `new`.
"""

from __future__ import annotations

from collections.abc import Mapping

from idcf.training.train import QueryUsers

GROUPS: Mapping[str, QueryUsers] = {  # group -> how its query users are trained on
    "new": "new",
    "few-shot": "few-shot",
    "all": "few-shot",
    "probe": "few-shot",
    "probe-new": "new",
}
PROBE_ROWS = 20
DESCRIPTIONS = {
    "new": "new users (absent from training, known by their histories alone)",
    "few-shot": "few-shot users (their few training rows are trained on)",
    "all": "all users (every test row)",
    "probe": "light users (fewer than 20 training rows, which are trained on)",
    "probe-new": "light users (fewer than 20 training rows, absent from training)",
}
