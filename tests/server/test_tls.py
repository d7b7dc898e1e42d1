"""HTTPS by the server itself."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest
from serve_world import EVEN_HISTORY, fitted, history_body, served
from slow_clients import host_and_port
from test_connections import connected, received

from idcf.errors import ConfigError
from idcf.server import run
from idcf.server.connections import ConnectionLimits

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> run.TlsFiles:
    """A certificate of 127.0.0.1, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = run.TlsFiles(folder / "cert.pem", folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    command += ["-out", str(files.certificate), "-keyout", str(files.key)]
    subprocess.run(command, check=True, capture_output=True)
    return files


@pytest.mark.parametrize("has_short_cut", [True, False])
def test_requests_over_tls(files: run.TlsFiles, has_short_cut: bool, short_cuts: list[int]) -> None:
    context = ssl.create_default_context(cafile=str(files.certificate))
    options = run.ServerOptions(tls=files)
    with served(fitted(), has_short_cut=has_short_cut, options=options) as address:
        host, port = host_and_port(address)
        with httpx2.Client(base_url=f"https://{host}:{port}", verify=context) as client:
            body = {"history": history_body(EVEN_HISTORY), "n": 3}
            assert len(client.post("/v1/recommend", json=body).json()["items"]) == 3
            assert client.get("/health").json() == {"status": "alive"}
        assert short_cuts == [200] * has_short_cut


def test_a_client_that_begins_no_handshake_is_closed(files: run.TlsFiles) -> None:
    options = run.ServerOptions(tls=files)
    short = ConnectionLimits(timeout_s=0.2)
    with served(fitted(), options=options, connections=short) as address:
        for data in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            with connected(address, data) as connection:
                assert b"HTTP/1.1 2" not in received(connection)


def test_files_that_are_no_certificate(files: run.TlsFiles, tmp_path: Path) -> None:
    model = fitted("bias").save(tmp_path / "model")
    swapped = run.TlsFiles(files.key, files.certificate)
    for pair in (swapped, run.TlsFiles(files.certificate, tmp_path / "none")):
        with pytest.raises(ConfigError, match="not a certificate and its key in PEM files"):
            run.serve(model, run.ServerOptions(tls=pair, port=0))
    with pytest.raises(ConfigError, match="--ssl-certfile, --ssl-keyfile"):
        run.tls_files(files.certificate, None)
    assert run.tls_files(None, None) is None
    assert run.tls_files(*files) == files
