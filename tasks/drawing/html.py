"""One self-contained HTML page: inline style, no remote asset; fit for phones and screen readers.

A table may sort on a click or a key, by a few lines of script; without script it is a plain table.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --soft: #444; --line: #ccc;
  --tile: #f1f5f9; --mark: #9a3412; --link: #0b57a4; --fill: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181d; --soft: #b8bcc4;
  --line: #3d424d; --tile: #242833; --mark: #f5a524; --link: #8ab8ff; --fill: #5aa9e6; }
  figure img { filter: invert(.91) hue-rotate(180deg); mix-blend-mode: lighten; } }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 60rem; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
a { color: var(--link); }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); }
th[scope=row] { width: 14rem; font-weight: 600; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }
.grid thead th.number { text-align: right; }
.wide { overflow-x: auto; } img { max-width: 100%; height: auto; } figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .9rem; } .lead { font-size: 1.1rem; }
.beside { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.beside figure { flex: 1 1 18rem; max-width: 35rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0; list-style: none; }
.tiles li { flex: 1 1 9rem; background: var(--tile); padding: .6rem .8rem; border-radius: .3rem;
  color: var(--soft); }
.tiles strong { display: block; font-size: 1.5rem; line-height: 1.3; color: var(--ink); }
.internal { border-left: .4rem solid var(--mark); padding-left: .8rem; }
.note { background: var(--tile); padding: .6rem .8rem; }
.grid { overflow-wrap: normal; } .grid th[scope=row] { width: auto; }
.grid th { vertical-align: bottom; }
.heatmap { display: flex; gap: .6rem; } .heat { flex: 1 1 auto; min-width: 0; fill: var(--fill); }
.heatmap ol { list-style: none; margin: 0; padding: 0; font-size: .75rem; }
.heatmap li { height: var(--row); line-height: var(--row); white-space: nowrap; }
.now { text-align: right; font-variant-numeric: tabular-nums; }
table.sortable button { font: inherit; font-weight: 600; color: inherit; background: none;
  border: 1px solid transparent; padding: .15rem .25rem; margin: 0 -.25rem; cursor: pointer;
  text-align: inherit; }
table.sortable button:hover { background: var(--tile); }
table.sortable button:focus-visible { outline: 3px solid var(--fill); outline-offset: 1px; }
table.sortable th[aria-sort=ascending] button::after { content: " \\25B2"; }
table.sortable th[aria-sort=descending] button::after { content: " \\25BC"; }
table.sortable caption { position: sticky; left: 0; max-width: calc(100vw - 2rem); }
.broad { max-width: 78rem; } .broad figure img { max-width: 60rem; width: 100%; }
.broad .grid { font-size: .9rem; } .broad .grid th, .broad .grid td { padding-right: .4rem; }
@media (max-width: 36rem) { th[scope=row] { width: 8rem; } body { padding: .6rem; }
  .broad figure { overflow-x: auto; } .broad figure img { max-width: none; width: 40rem; } }
"""


Cell = tuple[str, float | str | None]
"""What is shown, and what it is sorted by; None goes last."""

SCRIPT = """<script>
document.querySelectorAll("table.sortable").forEach(function (table) {
  table.querySelectorAll("thead th").forEach(function (head, column) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.textContent = "";
    head.appendChild(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var body = table.tBodies[0];
      Array.from(body.rows).sort(function (a, b) {
        var x = a.cells[column].dataset.key, y = b.cells[column].dataset.key;
        if (x === undefined || y === undefined) { return (x === undefined) - (y === undefined); }
        var order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return down ? -order : order;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
});
</script>"""


def page(title: str, parts: Iterable[str], kind: str = "") -> str:
    """A whole document from parts that are HTML already; ``title`` is text, ``kind`` a class of its
    body (broad: for wide tables).
    """
    body = "\n".join(parts)
    script = f"{SCRIPT}\n" if 'class="grid sortable"' in body else ""
    opened = f'<body class="{kind}">' if kind else "<body>"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, '
        f'initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n{opened}\n<main>\n<h1>{escape(title)}</h1>\n{body}\n"
        f"</main>\n{script}</body>\n</html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def rows(pairs: Sequence[tuple[str, str]]) -> str:
    """A table of names and values."""
    lines = (
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def grid(
    caption: str,
    names: Sequence[str],
    lines: Iterable[Sequence[str | Cell]],
    sort: bool = False,
) -> str:
    """A table with a head; the first cell of a line names it. Numbers stand at the right.

    A cell is its text, or text and what it is sorted by; with ``sort`` a click on a column's name
    sorts by it, which puts a script into the page.
    """
    cells = [[one if isinstance(one, tuple) else _keyed(one) for one in line] for line in lines]
    numbers = _numbers(cells, len(names))
    head = "".join(map(_title, names, numbers))
    body = "".join(f"<tr>{_line(line, numbers, sort)}</tr>" for line in cells)
    kind = "grid sortable" if sort else "grid"
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption, quote=True)}">'
        f'<table class="{kind}"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _numbers(cells: Sequence[Sequence[Cell]], columns: int) -> list[bool]:
    """Which columns hold numbers; the first one names its line."""
    found = [False] * columns
    for line in cells:
        for place, (_, key) in enumerate(line[1:], start=1):
            found[place] |= isinstance(key, float | int)
    return found


def _title(name: str, number: bool) -> str:
    return f'<th scope="col"{RIGHT if number else ""}>{escape(name)}</th>'


def _line(line: Sequence[Cell], numbers: Sequence[bool], sort: bool) -> str:
    return "".join(_cell(cell, numbers[k], k == 0, sort) for k, cell in enumerate(line))


def _keyed(text: str) -> Cell:
    """A text with the number that it begins with, where it does: 12.5 % by 12.5."""
    found = re.match(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?(?=$| %$| ±| to )", text)
    return text, float(found[0]) if found else (text or None)


RIGHT = ' class="number"'


def _cell(cell: Cell, number: bool, names: bool, sort: bool) -> str:
    text, key = cell
    sorted_by = f' data-key="{escape(str(key), quote=True)}"' if sort and key is not None else ""
    if names:
        return f'<th scope="row"{sorted_by}>{escape(text)}</th>'
    return f"<td{RIGHT if number else ''}{sorted_by}>{escape(text)}</td>"


def figure(
    image: bytes,
    description: str,
    caption: str | None = None,
    width: int | None = None,
    kind: str = "png",
) -> str:
    """A picture inside the page, at most ``width`` wide (CSS pixels); ``description`` says in words
    what it shows.

    ``caption`` stands below it, by default the description.
    """
    data = base64.b64encode(image).decode()
    size = "" if width is None else f' width="{width}"'
    return (
        f'<figure><img src="data:image/{kind};base64,{data}" '
        f'alt="{escape(description, quote=True)}"{size}>'
        f"<figcaption>{escape(description if caption is None else caption)}</figcaption></figure>"
    )


def link(text: str, target: str) -> str:
    """A paragraph that is a link."""
    return f'<p><a href="{escape(target, quote=True)}">{escape(text)}</a></p>'


def beside(figures: Iterable[str]) -> str:
    """Figures next to each other where the page is wide enough."""
    return f'<div class="beside">{"".join(figures)}</div>'


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """A few numbers to see first: (number, what it is)."""
    inner = "".join(
        f"<li><strong>{escape(value)}</strong> {escape(name)}</li>" for value, name in pairs
    )
    return f'<ul class="tiles">{inner}</ul>'


def items(texts: Iterable[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
