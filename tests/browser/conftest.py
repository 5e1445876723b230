"""One headless Chromium for all tests of pages; where there is none they skip and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chrome import Page, browser, find_chromium


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a new browser."""
    pytest.importorskip(
        "websockets", reason="no websockets to speak to a browser with (prefect brings it)"
    )
    program = find_chromium()
    if program is None:
        pytest.skip(
            "no Chromium found; install the package chromium, or name one in DPFLOWS_CHROMIUM"
        )
    with browser(program, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(page: Page) -> Page:
    """The tab, empty, with nothing asked for yet."""
    page.open("about:blank")
    page.requests.clear()
    page.errors.clear()
    return page
