"""A table that sorts on a click or a key, in a few lines of script; without script it is a plain table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Cell = tuple[str, float | str | None]
"""What is shown, and what it is sorted by; None goes last."""

STYLE = """<style>
table.sortable thead th { white-space: nowrap; }
table.sortable button { font: inherit; font-weight: 600; color: inherit; background: none;
  border: 1px solid transparent; padding: .15rem .25rem; margin-left: -.25rem; cursor: pointer; text-align: left; }
table.sortable button:hover { background: #e2e8f0; }
table.sortable button:focus-visible { outline: 3px solid #0072b2; outline-offset: 1px; }
table.sortable th[aria-sort=ascending] button::after { content: " \\25B2"; }
table.sortable th[aria-sort=descending] button::after { content: " \\25BC"; }
table.sortable th[scope=row] { width: auto; min-width: 11rem; } table.sortable td { white-space: nowrap; }
table.sortable caption { position: sticky; left: 0; max-width: calc(100vw - 2rem); }
@media (min-width: 64rem) { body { max-width: 90rem; } figure img { max-width: 60rem; } }
</style>"""

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


def sortable(caption: str, names: Sequence[str], lines: Iterable[Sequence[Cell]]) -> str:
    """The table; the first cell of a line names it. ``STYLE`` and ``SCRIPT`` go into the page once."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(_cell(cell, index == 0) for index, cell in enumerate(line))}</tr>" for line in lines)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}">'
        f'<table class="sortable"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, names_row: bool) -> str:
    text, key = cell
    sorted_by = "" if key is None else f' data-key="{escape(str(key), quote=True)}"'
    if names_row:
        return f'<th scope="row"{sorted_by}>{escape(text)}</th>'
    return f'<td class="number"{sorted_by}>{escape(text)}</td>'
