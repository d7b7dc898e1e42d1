"""One self-contained HTML page of text, tables and PNG figures: no scripts, no external links.

Sections of level 2 are in the list of contents; those of level 3 belong to the one before and are
folded. A table that is wider than the window scrolls inside its box.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from idcf.evaluation.tables import ResultTable

_STYLE = """
:root { color-scheme: light dark; --paper: #fafafa; --sheet: #fff; --ink: #222; --soft: #555;
  --faint: #636363; --line: #e3e3e3; --rule: #999; --link: #2f4bb0; --loud: #fff1d6;
  --shade: #0003; }
@media (prefers-color-scheme: dark) { :root { --paper: #14161b; --sheet: #1d2027; --ink: #eceae5;
  --soft: #a9aeb9; --faint: #a0a5b1; --line: #2e323c; --rule: #5b616e; --link: #9db2ff;
  --loud: #453514; --shade: #000c; } figure img { filter: invert(.88) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0; overflow-wrap: break-word; }
main { max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.3rem; margin: 2.6rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; } a { color: var(--link); }
p, ol.items, nav { max-width: 46rem; } p { margin: .4rem 0; } .lead { color: var(--soft); }
.headline { font-size: 1.25rem; line-height: 1.4; margin: .8rem 0; }
.loud { background: var(--loud); padding: .6rem 1rem; }
code { font-size: .92em; background: var(--line); border-radius: .25rem; padding: 0 .25rem; }
nav { margin: 1.4rem 0; padding: .8rem 1.2rem; background: var(--sheet);
  border: 1px solid var(--line); border-radius: 6px; } nav h2 { font-size: 1rem; margin: 0; }
nav ul { margin: .3rem 0 0; padding-left: 1.2rem; } nav li { padding: .15rem 0; }
details { margin: .5rem 0; border-top: 1px solid var(--line); }
summary { padding: .45rem 0; cursor: pointer; color: var(--link); }
figure { margin: 1rem 0; background: var(--sheet); border: 1px solid var(--line);
  border-radius: 6px; padding: 1rem; overflow: hidden; }
figure img { max-width: min(100%, 54rem); height: auto; display: block; margin: auto; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .6rem; max-width: 46rem; }
.wide { overflow-x: auto; max-width: 100%; width: fit-content; border: 1px solid var(--line);
  background: linear-gradient(90deg, transparent, var(--sheet) 70%) 100% / 3rem 100% local,
    linear-gradient(270deg, var(--shade), transparent) 100% / 1rem 100% scroll;
  background-repeat: no-repeat; background-color: var(--sheet); margin: .6rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); } td { min-width: 4rem; }
th { border-bottom: 2px solid var(--rule); white-space: nowrap; }
td small { display: inline-block; white-space: nowrap; color: var(--faint); font-size: .85em; }
tr.floor { color: var(--faint); } tr.last td { border-bottom: 2px solid var(--rule); }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--sheet);
  white-space: nowrap; }
td.best { font-weight: 700; } td.best small { font-weight: 400; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
footer { color: var(--faint); font-size: .85rem; margin: 3rem 0; }
@media (max-width: 34rem) { th, td { padding: .3rem .5rem; } figure { padding: .4rem; }
  th:first-child, td:first-child { white-space: normal; max-width: 8.5rem; } }
"""
_BEST_CLASS = ' class="best"'
_CODE = re.compile(r"`([^`]+)`")
_INTERVAL = re.compile(r"(\[[^]]*\])")


@dataclass(frozen=True)
class Section:
    """One section of a page: a table, a numbered list, a figure and a text, each optional."""

    title: str
    text: str = ""  # the caption of the figure, where there is one
    png: bytes | None = None  # the figure
    table: ResultTable | None = None
    items: Sequence[str] = ()  # entries of the numbered list
    level: int = 2  # 3: a part of the section before, which can be folded
    is_open: bool = False  # a part that is not folded at first


def render_html(
    title: str,
    lead: str,
    sections: Sequence[Section],
    footer: str,
    notice: str = "",
    headline: str = "",
) -> str:
    """Return a whole HTML document; all text is escaped, and what is in backticks is code.
    `notice` is a highlighted warning, `headline` the result in one sentence."""
    anchors = _anchors(sections)
    body = "\n".join(
        _render_section(x, anchor) for x, anchor in zip(sections, anchors, strict=True)
    )
    chapters = [(x, a) for x, a in zip(sections, anchors, strict=True) if x.level == 2]
    links = "".join(f'<li><a href="#{a}">{_inline(x.title)}</a></li>' for x, a in chapters)
    contents = (
        f'<nav aria-labelledby="contents"><h2 id="contents">Contents</h2><ul>{links}</ul></nav>'
    )
    warning = f'<p class="loud">{_inline(notice)}</p>' if notice else ""
    result = f'<p class="headline">{_inline(headline)}</p>' if headline else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f'<h1>{escape(title)}</h1>{result}<p class="lead">{_inline(lead)}</p>{warning}\n'
        f"{contents if len(chapters) > 1 else ''}\n{body}\n"
        f"<footer>{_inline(footer)}</footer></main></body></html>\n"
    )


def _inline(text: str) -> str:
    """Return a text as HTML, with <code> for what is in backticks."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _plain(text: str) -> str:
    """Return a text as an attribute of HTML, without backticks."""
    return escape(text.replace("`", ""))


def _anchors(sections: Sequence[Section]) -> list[str]:
    """Return an id for each section, made from its title; a repeated title gets a number."""
    counts: dict[str, int] = {}

    def anchor(section: Section) -> str:
        """Return the next id for a title."""
        name = re.sub(r"\W+", "-", section.title.lower()).strip("-")
        counts[name] = counts.get(name, 0) + 1
        return name if counts[name] == 1 else f"{name}-{counts[name]}"

    return [anchor(x) for x in sections]


def _render_section(section: Section, anchor: str) -> str:
    """Return the HTML of a section; the text is the caption of the figure, if there is one."""
    content = "\n".join(_render_content(section))
    title = _inline(section.title)
    if section.level == 3:
        state = " open" if section.is_open else ""
        return f'<details id="{anchor}"{state}><summary>{title}</summary>\n{content}\n</details>'
    return f'<section id="{anchor}"><h2>{title}</h2>\n{content}\n</section>'


def _render_content(section: Section) -> Iterator[str]:
    """Yield the parts of a section below its title."""
    text = _inline(section.text)
    if text and section.png is None:
        yield f"<p>{text}</p>"
    if section.table:
        yield _render_table(section.table)
    if section.items:
        entries = "".join(f"<li>{_inline(item)}</li>" for item in section.items)
        yield f'<ol class="items">{entries}</ol>'
    if section.png is not None:
        data = base64.b64encode(section.png).decode()
        image = f'<img alt="{_plain(section.title)}" src="data:image/png;base64,{data}">'
        yield f"<figure>{image}<figcaption>{text}</figcaption></figure>"


def _render_table(table: ResultTable) -> str:
    """Return the HTML of a table and its notes, baselines first and set apart."""
    head = "".join(f'<th scope="col">{_inline(name)}</th>' for name in table.header)
    classes = ["floor"] * (len(table.baseline_lines) - 1) + ["floor last"]
    rows = [_render_row(*line) for line in zip(table.baseline_lines, classes, strict=False)]
    rows += [_render_row(line, "") for line in table.model_lines]
    notes = "".join(f'<p class="lead">{_inline(note)}</p>' for note in table.notes)
    box = f'<div class="wide" tabindex="0" role="group" aria-label="{_plain(table.title)}">'
    return f"{box}<table><tr>{head}</tr>{''.join(rows)}</table></div>{notes}"


def _render_row(values: Sequence[str], css_class: str) -> str:
    """Return the HTML of a table row; a cell that ends with * is marked as the best, and intervals
    may stand below their values."""
    return f'<tr class="{css_class}">{"".join(map(_render_cell, values))}</tr>'


def _render_cell(text: str) -> str:
    """Return the HTML of a table cell."""
    css_class = _BEST_CLASS if text.endswith("*") else ""
    content = _INTERVAL.sub(r"<small>\1</small>", _inline(text))
    return f"<td{css_class}>{content}</td>"
