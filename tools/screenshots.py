"""The pictures of the dashboard in `docs/images`: `taskharbor demo --serve`, looked at by a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tools import browser

FOLDER = Path(__file__).parents[1] / "docs/images"


@contextmanager
def _served() -> Iterator[str]:
    """Run the demo; yield its address."""
    command = [sys.executable, "-m", "taskharbor.cli", "demo", "--serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stderr is not None
        address = next(
            found[1] for line in process.stderr if (found := re.search(r"serving on (\S+),", line))
        )
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        try:
            yield address
        finally:
            process.terminate()
            drain.wait()


def _picture(page: Page, name: str) -> None:
    page.wait_for_load_state("load")
    page.wait_for_timeout(1_500)  # the charts are drawn by the script
    page.screenshot(path=FOLDER / f"dashboard-{name}.png")


def main() -> None:
    with _served() as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.binary(), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = chromium.new_page(
                base_url=address,
                viewport={"width": 1200, "height": 690},
                color_scheme=scheme,
            )
            page.goto("/")
            _picture(page, f"overview-{scheme}")
            page.goto("/errors")
            page.locator("[data-open]").first.click()
            page.locator("td [data-open]").first.click()
            _picture(page, f"job-{scheme}")
            page.goto("/workflows")
            page.locator("[data-open]").first.click()
            _picture(page, f"workflow-{scheme}")
            page.close()
        chromium.close()


if __name__ == "__main__":
    main()
