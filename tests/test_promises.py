"""The page of promises: every promise names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/concepts/promises.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def named_paths(text: str) -> list[str]:
    """Return the paths in the repository that a text names."""
    return re.findall(r"`(tests/[^`\s]+)`", text)


def test_every_path_on_the_page_exists() -> None:
    paths = named_paths(PAGE)
    assert len(paths) > 10
    assert [x for x in paths if not (ROOT / x).exists()] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda x: x.split("\n")[0])
def test_every_section_names_a_test(section: str) -> None:
    assert named_paths(section), section


def test_the_table_of_the_campaign_has_every_attack() -> None:
    source = (ROOT / "tests/campaign/campaign.py").read_text(encoding="utf-8")
    attacks = set(re.findall(r'^    "(\w+)",$', source, re.MULTILINE))
    rows = re.findall(r"^\|.*\| `tests/campaign/(\w+)\.py` \|$", PAGE, re.MULTILINE)
    assert "artifact_mutations" in attacks
    assert attacks <= set(rows)
    assert len(rows) == len(set(rows))
