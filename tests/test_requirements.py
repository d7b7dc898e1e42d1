"""What CI installs has the versions of constraints.txt and a SHA-256 for every wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)")


def entries(file: str) -> list[tuple[str, str, int]]:
    """Name, version and number of hashes of every package; AssertionError: a line is none."""
    text = (ROOT / file).read_text()
    comment, _, body = text.partition("\n")
    assert comment.startswith("# ")
    assert re.fullmatch(rf"(?:{ENTRY.pattern}\n)+", body)
    return [
        (name, version, hashes.count("--hash")) for name, version, hashes in ENTRY.findall(body)
    ]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-client.txt"])
def test_every_package_has_a_hash(file: str) -> None:
    packages = entries(file)
    assert len(packages) > 20
    assert all(n_hashes >= 1 for _, _, n_hashes in packages)
    names = [re.sub(r"[-_.]+", "-", name.lower()) for name, _, _ in packages]
    assert len(set(names)) == len(names)


def test_versions_are_those_of_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
    packages = {name: version for name, version, _ in entries("requirements.txt")}
    assert packages.items() <= pins.items()
    assert {"torch", "numpy", "pytest", "setuptools"} <= packages.keys()
