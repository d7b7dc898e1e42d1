from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from calls import OPTIONS, call

from idcf import Recommender
from idcf.testing.synthetic import checkerboard


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `idcf train` makes of a file and a table of titles."""
    home = tmp_path_factory.mktemp("verbs")
    table = checkerboard(60, 80, np.random.default_rng(0), few=9, many=24)
    columns = zip(table.user, table.item, table.rating, strict=True)
    rows = "\n".join(f"u{u},i{i},{r:g}" for u, i, r in columns)
    (home / "ratings.csv").write_text(f"user_id,item_id,rating\n{rows}\n")
    names = "\n".join(f'i{n},"Film {n}, The (19{n + 10})"' for n in range(80))
    (home / "titles.csv").write_text(f"item_id,title\n{names}\n")
    told = call(
        *("train", str(home / "ratings.csv"), "--out", str(home / "model"), *OPTIONS),
        *("--titles", str(home / "titles.csv"), "--set", "embedding_size=4", "--json"),
    )
    found = json.loads(told)
    assert (found["model"], found["items"], found["key_threshold"]) == ("als", 80, 15)
    assert Recommender.load(home / "model").about.options["embedding_size"] == 4
    return home / "model"
