"""A model trained by the command line, for the tests of the verbs that use one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import board, write_csv
from calls import OPTIONS, call

from idcf import Recommender


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model trained on a file of ratings and a table of titles."""
    folder = tmp_path_factory.mktemp("verbs")
    write_csv(board(60, 80, 9, 24), folder / "ratings.csv")
    titles = "\n".join(f'i{n},"Film {n}, The (19{n + 10})"' for n in range(80))
    (folder / "titles.csv").write_text(f"item_id,title\n{titles}\n")
    output = call(
        *("train", str(folder / "ratings.csv"), "--out", str(folder / "model"), *OPTIONS),
        *("--items", str(folder / "titles.csv"), "-o", "embedding_size=4", "--json"),
    )
    summary = json.loads(output)
    assert (summary["model"], summary["n_items"], summary["key_threshold"]) == ("als", 80, 15)
    assert Recommender.load(folder / "model").manifest.options["embedding_size"] == 4
    return folder / "model"
