"""A real Chromium, and a real server with a worker beside it. Every test ends without an error on the console."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

from taskharbor import Harbor
from tools import browser as browsers

APP = Path(__file__).parent / "shop.py"
PATIENCE_MS = 60_000


class Shop:
    """An application that is served: its address, its folder, and its store."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(APP.read_text())
        self.harbor = Harbor(f"sqlite:///{folder}/shop.db")
        self.harbor.migrate()
        self._command = [sys.executable, "-m", "taskharbor.cli", *words, "-A", "shop:harbor", "--port", "0"]
        self.address = ""

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, cwd=self.folder, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            seen.append(line)
            if found := re.search(r"serving on (\S+),", line):
                self.address = found[1]
                break
        assert self.address, seen
        # The test does not read its output from here on, and a full pipe would stop it.
        self._drain = subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=subprocess.DEVNULL)

    def breaks(self, is_broken: bool = True) -> None:
        """Make its handlers fail, or mend them."""
        flag = self.folder / "broken"
        flag.touch() if is_broken else flag.unlink(missing_ok=True)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._drain.wait(60)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self.harbor.close()


@pytest.fixture(scope="module")  # no longer: Playwright's loop would be in the way of tests that run one
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        options = {"args": ["--no-sandbox"], "executable_path": browsers.binary()}
        browser = playwright.chromium.launch(**options)  # type: ignore[arg-type]
        yield browser
        browser.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop with a worker, open to this machine."""
    shop = Shop(tmp_path, "dev", "--no-reload")
    shop.start()
    yield shop
    shop.close()


@pytest.fixture
def closed_shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop that is only served. It is not started: the test makes tokens first."""
    shop = Shop(tmp_path, "serve")
    yield shop
    shop.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a page in a browser of its own. No page may write an error, show a dialog, or ask another host."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_page(address: str, expected: tuple[str, ...] = (), **options: object) -> Page:
        context = browser.new_context(base_url=address, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        host = urlsplit(address).netloc

        def told(text: str) -> None:
            if not any(each in text for each in expected):
                faults.append(text)

        def refuse(dialog: Dialog) -> None:
            told(f"a dialog: {dialog.message}")
            dialog.dismiss()

        page.on("console", lambda message: told(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: told(str(error)))
        page.on("dialog", refuse)
        page.on("request", lambda asked: None if urlsplit(asked.url).netloc == host else told(asked.url))
        page.goto("/")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
