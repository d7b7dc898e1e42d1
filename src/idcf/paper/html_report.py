"""One self-contained HTML page of text, tables and PNG figures: no scripts, no external links."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from idcf.evaluation.tables import ResultTable

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
_BEST_CLASS = ' class="best"'


@dataclass(frozen=True)
class Section:
    """One section of a page: a table, a numbered list, a figure and a text, each optional."""

    title: str
    text: str = ""  # the caption of the figure, where there is one
    png: bytes | None = None  # the figure
    table: ResultTable | None = None
    items: Sequence[str] = ()  # entries of the numbered list


def render_html(
    title: str, lead: str, sections: Sequence[Section], footer: str, notice: str = ""
) -> str:
    """Return a whole HTML document; all text is escaped. `notice` is a highlighted warning."""
    body = "\n".join(_render_section(s) for s in sections)
    warning = f'<p class="loud">{escape(notice)}</p>' if notice else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{warning}\n{body}\n'
        f"<footer>{escape(footer)}</footer></main></body></html>\n"
    )


def _render_section(section: Section) -> str:
    """Return the HTML of a section; the text is the caption of the figure, if there is one."""
    parts = [f"<section><h2>{escape(section.title)}</h2>"]
    if section.table:
        parts.append(_render_table(section.table))
    if section.items:
        entries = "".join(f"<li>{escape(item)}</li>" for item in section.items)
        parts.append(f"<ol>{entries}</ol>")
    text = escape(section.text)
    if section.png is not None:
        data = base64.b64encode(section.png).decode()
        image = f'<img alt="{escape(section.title)}" src="data:image/png;base64,{data}">'
        parts.append(f"<figure>{image}<figcaption>{text}</figcaption></figure>")
    elif text:
        parts.append(f"<p>{text}</p>")
    return "\n".join([*parts, "</section>"])


def _render_table(table: ResultTable) -> str:
    """Return the HTML of a table and its notes, baselines first and set apart."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    classes = ["floor"] * (len(table.baseline_lines) - 1) + ["floor last"]
    rows = [_render_row(*line) for line in zip(table.baseline_lines, classes, strict=False)]
    rows += [_render_row(line, "") for line in table.model_lines]
    notes = "".join(f'<p class="lead">{escape(note)}</p>' for note in table.notes)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>{notes}'


def _render_row(values: Sequence[str], css_class: str) -> str:
    """Return the HTML of a table row; a cell that ends with * is marked as the best."""
    cells = "".join(
        f"<td{_BEST_CLASS if text.endswith('*') else ''}>{escape(text)}</td>" for text in values
    )
    return f'<tr class="{css_class}">{cells}</tr>'
