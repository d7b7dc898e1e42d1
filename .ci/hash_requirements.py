"""Write requirements.txt and requirements-client.txt: the packages of the two environments of
`make test`, with the SHA-256 of their wheels for Linux and macOS and every supported Python.

The first has what this environment holds, at the versions of constraints.txt; the second what the
generator of HTTP clients needs, at the versions that .venv/client holds. Run it in the environment
that `make test` has set up, after a change of either:

    .venv/bin/python .ci/hash_requirements.py

It asks the package index, and the folders of wheels, that pip is configured with.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from pip._internal.commands import create_command
from pip._internal.index.collector import parse_links
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYTHON = r"(py\d[\w.]*|cp3\d+)-(none|abi3|cp31[1-4])"
PLATFORM = r"(any|(manylinux|linux)\S*_(x86_64|aarch64)|macosx_\S*(arm64|universal2))"
WHEEL = re.compile(rf"(?P<name>[^-]+)-(?P<version>[^-+]+)\S*-{PYTHON}-{PLATFORM}\.whl")


def main() -> None:
    """Write the files."""
    pins = read_pins((ROOT / "constraints.txt").read_text())
    names = needed("idcf", {"plots", "hdf5", "dev"}) | {"setuptools"}  # which builds idcf
    write("requirements.txt", [x for x in pins if canonicalize_name(x[0]) in names])
    client = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv/client")
    freeze = [str(client / "bin/python"), "-m", "pip", "freeze"]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    write("requirements-client.txt", read_pins(frozen))


def needed(package: str, extras: set[str]) -> set[str]:
    """Return the names of the installed packages that one needs with some of its extras."""
    todo, done = [(package, frozenset(extras))], set()
    while todo:
        if (entry := todo.pop()) in done:
            continue
        done.add(entry)
        for line in requires(entry[0]) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": x}) for x in ("", *entry[1])):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in done} - {package}


def read_pins(text: str) -> list[tuple[str, str]]:
    """Return names and versions."""
    return re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)


def write(file: str, pins: list[tuple[str, str]]) -> None:
    """Write a file of requirements with hashes."""
    lines = ["# Written by .ci/hash_requirements.py; see there."]
    command: Any = create_command("download")
    options, _ = command.parse_args([])
    with command.main_context(), command._build_session(options) as session:
        finder = command._build_package_finder(options, session)
        for name, version in pins:
            found = sorted({sha256(x) for x in links(finder, name) if is_wheel(x, name, version)})
            if not found:
                raise SystemExit(f"no wheel of {name}=={version}; check the index of pip")
            hashes = [f"--hash=sha256:{x}" for x in found]
            lines.append(" \\\n    ".join([f"{name}=={version}", *hashes]))
    (ROOT / file).write_text("\n".join(lines) + "\n")


def links(finder: Any, name: str) -> Iterator[Any]:
    """Yield the links to all files of a package."""
    sources = finder._link_collector.collect_sources(name, candidates_from_page=lambda link: [])
    for source in filter(None, (*sources.find_links, *sources.index_urls)):
        yield from source.file_links()
        page = source.link and finder._link_collector.fetch_response(source.link)
        if page:
            yield from parse_links(page)


def is_wheel(link: Any, name: str, version: str) -> bool:
    """Return whether a file is a wheel of a version that a supported system installs."""
    match = WHEEL.fullmatch(link.filename)
    needs_cuda = name == "torch" and "linux" in link.filename and "+cpu" not in link.filename
    return bool(
        match
        and not needs_cuda  # its many packages are not listed
        and canonicalize_name(match["name"]) == canonicalize_name(name)
        and match["version"] == version
    )


def sha256(link: Any) -> str:
    """Return the SHA-256 that the index gives, or that of a file in a folder."""
    if link.hash_name == "sha256":
        return str(link.hash)
    return hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
