"""Models on a Hub: the real client, and a server of this machine that keeps what it is sent."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed; pip install 'idcf[hub]'"
)

from builders import board

import idcf.hub
from idcf import ArtifactError, ConfigError, Recommender
from idcf.cli import app

HISTORY = {"i2": 5.0, "i3": 1.0}
TOKEN = "hf_" + "x" * 20
COMMIT = "a" * 40


class HubHandler(BaseHTTPRequestHandler):
    """The part of the Hub's interface that the client uses for small files."""

    files: dict[str, bytes]  # of the only repository
    created: dict[str, Any]  # the request that created it
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Create the repository, say how files are to be sent, and take a commit."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            type(self).created = json.loads(body)
            self.answer({"url": f"http://{self.headers['host']}/ann/films"})
        elif "/preupload/" in self.path:
            names = [x["path"] for x in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": x, **modes} for x in names]})
        elif self.path == "/api/validate-yaml":  # of README.md
            self.answer({"errors": [], "warnings": []})
        else:
            assert self.path == "/api/models/ann/films/commit/main"
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.files[line["value"]["path"]] = content
            url = f"http://{self.headers['host']}/ann/films/commit/{COMMIT}"
            self.answer({"commitOid": COMMIT, "commitUrl": url, "success": True})

    def do_GET(self) -> None:
        """List the repository, or send a file."""
        if self.path.split("?")[0].startswith("/api/models/ann/films/tree/"):
            self.answer([self.entry(name) for name in self.files])
        elif self.path.startswith("/api/models/ann/films"):
            names = [{"rfilename": name} for name in self.files]
            self.answer({"id": "ann/films", "sha": COMMIT, "siblings": names})
        elif self.path.startswith(f"/ann/films/resolve/{COMMIT}/"):
            content = self.files[self.path.rsplit("/", 1)[1]]
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.send_header("etag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("x-repo-commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)
        else:
            self.answer({"error": "Repository not found"}, 404)

    do_HEAD = do_GET

    def entry(self, name: str) -> dict[str, Any]:
        """Describe a file as a tree does."""
        content = self.files[name]
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}

    def answer(self, values: Any, status: int = 200) -> None:
        """Send JSON."""
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if status == 404:
            self.send_header("x-error-code", "RepoNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HubHandler]]:
    """Handler of a server that stands for the Hub, as HF_ENDPOINT would make it."""
    handler = type("Handler", (HubHandler,), {"files": {}, "created": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield handler
        server.shutdown()


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender("als", key_threshold=12, device="cpu").fit(board(60, 30, 6, 16))


def test_a_model_comes_back_as_it_was_pushed(
    hub: type[HubHandler], recommender: Recommender, tmp_path: Path
) -> None:
    url = idcf.hub.push_to_hub(
        recommender, "ann/films",
        license="mit", tags=["films"], private=True, token=TOKEN,
    )  # fmt: skip
    assert url.endswith("/ann/films")
    assert hub.created["name"] == "films"
    assert hub.created.get("private") or hub.created["visibility"] == "private"
    recommender.save(tmp_path / "saved")
    names = {x.name for x in (tmp_path / "saved").iterdir()}
    assert set(hub.files) == {*names, "README.md"}
    assert names == set(idcf.hub._FILE_NAMES)
    options = {"cache_dir": tmp_path / "cache"}
    loaded = idcf.hub.from_pretrained("ann/films", **options)
    assert loaded.recommend(HISTORY) == recommender.recommend(HISTORY)
    assert {x.name for x in (tmp_path / "cache").rglob("snapshots/*/*")} == names
    hub.files.clear()
    again = idcf.hub.from_pretrained("ann/films", **options, local_files_only=True)
    assert again.recommend(HISTORY) == recommender.recommend(HISTORY)


def test_the_command_pushes_a_saved_model(
    hub: type[HubHandler], recommender: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recommender.save(tmp_path / "saved")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    arguments = ["push", str(folder), "ann/films", "--license", "mit", "--private", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert json.loads(result.stdout)["address"].endswith("/ann/films")
    assert set(hub.files) == {*(x.name for x in folder.iterdir()), "README.md"}
    assert hub.files["weights.safetensors"] == (folder / "weights.safetensors").read_bytes()
    assert yaml.safe_load(hub.files["README.md"].decode().split("---\n")[1])["license"] == "mit"
    assert hub.created.get("private") or hub.created["visibility"] == "private"


def test_the_card_has_metadata_before_the_model_card(
    hub: type[HubHandler], recommender: Recommender
) -> None:
    for options in ({"license": "mit", "tags": ["films", "als"]}, {}):
        idcf.hub.push_to_hub(recommender, "ann/films", token=TOKEN, **options)
        empty, front, card = hub.files["README.md"].decode().split("---\n", 2)
        assert empty == ""
        assert card.strip() == hub.files["card.md"].decode().strip()
        values = yaml.safe_load(front)
        assert values["library_name"] == "idcf"
        assert values.get("license") == options.get("license")
        assert {"recommender-system", "ratings", "als"} <= set(values["tags"])
        assert len(set(values["tags"])) == len(values["tags"])
        assert ("films" in values["tags"]) == bool(options)


def test_a_file_that_was_changed_on_the_hub_is_refused(
    hub: type[HubHandler], recommender: Recommender, tmp_path: Path
) -> None:
    idcf.hub.push_to_hub(recommender, "ann/films", token=TOKEN)
    weights = hub.files["weights.safetensors"]
    hub.files["weights.safetensors"] = weights[:-1] + bytes([weights[-1] ^ 1])
    with pytest.raises(ArtifactError, match="changed after it was written"):
        idcf.hub.from_pretrained("ann/films", cache_dir=tmp_path)


def test_a_folder_of_this_machine(recommender: Recommender, tmp_path: Path) -> None:
    recommender.save(tmp_path / "model")
    loaded = idcf.hub.from_pretrained(tmp_path / "model")
    assert loaded.recommend(HISTORY) == recommender.recommend(HISTORY)


def test_errors_are_sentences(
    hub: type[HubHandler],
    recommender: Recommender,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match=r"ann/films cannot be written: .*401.*hf auth login"):
        idcf.hub.push_to_hub(recommender, "ann/films", token="hf_wrong")
    with pytest.raises(ConfigError, match="give a name such as ann/films") as refused:
        idcf.hub.push_to_hub(recommender, "no name / at all", token=TOKEN)
    assert "log in" not in str(refused.value)
    with pytest.raises(ConfigError, match="not fitted"):
        idcf.hub.push_to_hub(Recommender(), "ann/films", token=TOKEN)
    rows = Recommender("idcf-gc", key_threshold=12, device="cpu", epochs=1).fit(
        board(60, 30, 6, 16)
    )
    with pytest.raises(ConfigError, match="what every key user rated"):
        idcf.hub.push_to_hub(rows, "ann/films", token=TOKEN)
    for name, options in (
        ("bob/none", {}),
        ("no name / at all", {}),
        ("ann/films", {"local_files_only": True}),
    ):
        with pytest.raises(ArtifactError, match=f"^no model '{name}' on the Hub") as caught:
            idcf.hub.from_pretrained(name, cache_dir=tmp_path, **options)
        assert "\n" not in str(caught.value)
    monkeypatch.setattr("idcf.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'idcf\[hub\]'"):
        idcf.hub.from_pretrained("ann/films", cache_dir=tmp_path)
