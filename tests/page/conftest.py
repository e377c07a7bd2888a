"""A stage for each test that wants one, and Debian's Chromium for all of them."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.page.stage import Stage

#: for what must happen; a busy machine may take its time
PATIENCE_MS = 180_000


@pytest.fixture
def stage(tmp_path):
    """A server on loopback with nothing in it yet, for which time stands still."""
    made = Stage(tmp_path)
    made.clock.stop()
    yield made
    made.close()


# Not for the session: Playwright keeps an event loop running in this thread, where others cannot run theirs.
@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed (Debian package chromium)")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # In a container or as root there is no sandbox to be had; the pages are our own.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


class Look:
    """A page, and all that went wrong or out on it."""

    def __init__(self, page, stage):
        self.page, self.stage = page, stage
        self.complaints, self.asked = [], []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def _said(self, kind, text):
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def go(self, view="overview", query=""):
        self.page.goto(f"{self.stage.url}/{query}#/{view}")
        return self.page

    @property
    def strangers(self):
        return [url for url in self.asked if not url.startswith(self.stage.url + "/")]


@pytest.fixture
def look(chromium, stage):
    """Open pages as a browser of a certain kind shows them."""
    contexts = []

    def open_(width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, **{"locale": "en-US"} | options)
        contexts.append(context)
        return Look(context.new_page(), stage)

    yield open_
    for context in contexts:
        context.close()
