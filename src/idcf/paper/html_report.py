"""A page of HTML with everything in it: no script, no outside link, figures inlined."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from idcf.evaluation.tables import Table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fafafa; margin: 0; }
main { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
p { margin: .4rem 0; } .lead { color: #555; } .loud { background: #fff1d6; padding: .6rem 1rem; }
figure { margin: 1rem 0; background: #fff; border: 1px solid #e3e3e3; border-radius: 6px;
  padding: 1rem; } figure img { max-width: 100%; height: auto; display: block; margin: auto; }
figcaption { color: #555; font-size: .9rem; margin-top: .6rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; background: #fff; font-size: .9rem;
  font-variant-numeric: tabular-nums; } th, td { padding: .35rem .8rem; text-align: left;
  border-bottom: 1px solid #e8e8e8; white-space: nowrap; } th { border-bottom: 2px solid #999; }
tr.floor { color: #777; } tr.last td { border-bottom: 2px solid #ccc; }
td.best { font-weight: 700; } footer { color: #777; font-size: .85rem; margin: 3rem 0; }
"""


@dataclass(frozen=True)
class Section:
    title: str
    text: str = ""
    png: bytes | None = None
    table: Table | None = None
    items: Sequence[str] = ()


def write_report(
    path: Path, title: str, lead: str, sections: Sequence[Section], footer: str, loud: str = ""
) -> None:
    """The page, whole or not at all. `loud` is what nobody may overlook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    fresh.write_text(page(title, lead, sections, footer, loud), encoding="utf-8")
    fresh.replace(path)


def page(title: str, lead: str, sections: Sequence[Section], footer: str, loud: str = "") -> str:
    body = "\n".join(_section(s) for s in sections)
    warning = f'<p class="loud">{escape(loud)}</p>' if loud else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{warning}\n{body}\n'
        f"<footer>{escape(footer)}</footer></main></body></html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    if section.table:
        parts.append(_table(section.table))
    if section.items:
        lines = "".join(f"<li>{escape(x)}</li>" for x in section.items)
        parts.append(f"<ol>{lines}</ol>")
    text = escape(section.text)
    if section.png is not None:
        data = base64.b64encode(section.png).decode()
        image = f'<img alt="{escape(section.title)}" src="data:image/png;base64,{data}">'
        parts.append(f"<figure>{image}<figcaption>{text}</figcaption></figure>")
    elif text:
        parts.append(f"<p>{text}</p>")
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(x)}</th>" for x in table.header)
    rows = [
        _row(line, "floor last" if n + 1 == len(table.floors) else "floor")
        for n, line in enumerate(table.floors)
    ]
    rows += [_row(line, "") for line in table.body]
    notes = "".join(f'<p class="lead">{escape(x)}</p>' for x in table.notes)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>{notes}'


def _row(line: Sequence[str], kind: str) -> str:
    cells = "".join(
        f'<td class="best">{escape(x)}</td>' if x.endswith("*") else f"<td>{escape(x)}</td>"
        for x in line
    )
    return f'<tr class="{kind}">{cells}</tr>'
