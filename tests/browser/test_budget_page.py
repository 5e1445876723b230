"""The page of the budget in a real browser: whole at every width, readable by day and by night."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.ledger import Ledger
from tasks.report.budget import budget_page
from tests.browser.chrome import Page
from tests.browser.test_pages import OVERFLOW
from tests.tasks.report.test_budget import spent

__all__ = ["spent"]

# The least contrast of a text with what stands behind it, by WCAG 2, over all visible elements that
# hold text of their own.
CONTRAST = """
(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found; }
    return [255, 255, 255]; };
  let least = 99;
  for (const e of document.querySelectorAll("main *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.closest("svg")) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(ground(e))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()
"""
CLIPPED = (
    "[...document.querySelectorAll('li, th, td, p, h2')].filter(e => e.scrollWidth > e.clientWidth "
    "+ 1 && getComputedStyle(e).overflow === 'hidden').length"
)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 1280, 390, 320])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_budget_is_readable(
    tab: Page, spent: Ledger, tmp_path: Path, width: int, scheme: str
) -> None:
    release = {"data": "visits", "name": "visits", "version": "3", "approved_by": "A. Person"}
    release |= {"epsilon": 0.8, "delta": 1e-4, "at": "2026-01-20T10:00:00"}
    file = tmp_path / "budget.html"
    file.write_text(budget_page(spent, {}, [release]), encoding="utf-8")
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", features=media)
    try:
        tab.open(file.as_uri(), width)
        assert tab.ask(OVERFLOW) == 0, "the page is wider than its window"
        assert tab.ask(CONTRAST) >= 4.5
        assert tab.ask(CLIPPED) == 0
        background = tab.ask("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
        # The heat map is there and has a size.
        assert tab.ask("document.querySelector('svg.heat').getBoundingClientRect().width") > 100
        assert tab.ask("document.querySelectorAll('svg.heat rect').length") == 4
        assert tab.requests == [file.as_uri()] and tab.errors == []
    finally:
        tab.call("Emulation.setEmulatedMedia", features=[])
