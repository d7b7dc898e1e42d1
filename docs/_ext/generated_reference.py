"""Write the command-line and HTTP references from the program itself, before the site is built."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer.main
from sphinx.application import Sphinx

from idcf.cli import app as cli_app


def command_pages(command: click.Command, path: str, level: int = 2) -> Iterator[str]:
    """Yield the lines of one command: its help, arguments and options, then its subcommands."""
    if path != "idcf":
        yield f"{'#' * level} `{path}`\n"
    yield f"{(command.help or '').strip()}\n"
    context = click.Context(command, info_name=path)
    params = [p for p in command.get_params(context) if p.name != "help"]
    records = [(p.param_type_name, p.get_help_record(context)) for p in params]
    rows = [(kind, *record) for kind, record in records if record is not None]
    arguments = [name.split()[0] for kind, name, _ in rows if kind == "argument"]
    yield f"```text\n{' '.join([path, *arguments, '[OPTIONS]'])}\n```\n"
    for _, name, text in rows:
        yield f"`{name}`\n: {text or 'No description.'}\n"
    for name, sub in getattr(command, "commands", {}).items():
        if not sub.hidden:
            yield from command_pages(sub, f"{path} {name}", level + (path != "idcf"))


def schema_name(schema: dict[str, Any]) -> str:
    """Return a short name of a JSON schema: a link to its section, or its type."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(schema_name(x) for x in schema.get("anyOf", schema.get("oneOf", [])))
    if schema.get("type") == "array":
        return f"array of {schema_name(schema.get('items', {}))}"
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def body_schema(content: dict[str, Any]) -> str:
    """Return the name of the schema of a request's or response's body, or its media type."""
    media = content.get("application/json")
    return schema_name(media.get("schema", {})) if media else ", ".join(content)


def http_pages(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the HTTP reference: paths, then the schemas they use."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"## `{method.upper()} {path}`\n"
            text = operation.get("description") or operation.get("summary") or ""
            yield f"{text.strip()}\n"
            for parameter in operation.get("parameters", []):
                kind = schema_name(parameter.get("schema", {}))
                text = parameter.get("description") or "No description."
                yield f"`{parameter['name']}` ({kind}, in {parameter['in']})\n: {text}\n"
            if "requestBody" in operation:
                yield f"Request body: {body_schema(operation['requestBody']['content'])}\n"
            for status, response in operation["responses"].items():
                body = body_schema(response.get("content", {})) if response.get("content") else ""
                yield f"- {status}: {response.get('description', '')}{f' ({body})' if body else ''}"
            yield ""
    yield "## Schemas\n"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f"### {name}\n"
        yield f"{(schema.get('description') or '').strip()}\n"
        required = set(schema.get("required", []))
        for field, kind in schema.get("properties", {}).items():
            note = "required" if field in required else "optional"
            text = kind.get("description") or kind.get("title") or field
            yield f"`{field}` ({schema_name(kind)}, {note})\n: {text}\n"


def openapi_document() -> dict[str, Any]:
    """Return the document that a server of a tiny model serves at /openapi.json."""
    import pyarrow as pa

    from idcf import Recommender
    from idcf.server.app import create_app
    from idcf.server.batcher import RequestBatcher

    columns = {"user_id": list("aaabbbccc"), "item_id": list("xyzxyzxyz"), "rating": [1, 2, 3] * 3}
    recommender = Recommender("bias").fit(pa.table(columns))
    return asyncio.run(get_json(create_app(RequestBatcher(recommender)), "/openapi.json"))


async def get_json(application: Any, path: str) -> Any:
    """Return the JSON that an ASGI application answers to one GET request."""
    body = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "root_path": "",
        "scheme": "http",
        "server": ("localhost", 80),
        "http_version": "1.1",
    }
    await application(scope, receive, send)
    return json.loads(body)


def write_pages(app: Sphinx) -> None:
    """Write reference/cli.md and reference/http.md; unchanged files are left alone."""
    folder = Path(app.srcdir, "reference")
    folder.mkdir(exist_ok=True)
    command = typer.main.get_command(cli_app)
    pages = {
        "cli.md": ("Command line", command_pages(command, "idcf")),
        "http.md": ("HTTP interface", http_pages(openapi_document())),
    }
    for name, (title, lines) in pages.items():
        text = f"# {title}\n\n" + "\n".join(lines) + "\n"
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Run before Sphinx looks for source files."""
    app.connect("config-inited", lambda app, config: write_pages(app))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
