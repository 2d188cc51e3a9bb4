"""Every Python block and every command of the documentation does what the page says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import run_broker
from tests.docs.markdown import PAGES, ROOT, blocks, named
from tests.docs.session import PageSession, assert_output
from tests.postgres import store

SITE = {"{toctree}", "{eval-rst}", "{include}"}  # read by Sphinx; `test_site.py` builds the site
LANGUAGES = {"python", "console", "output", "sql", "text", "", *SITE}
MARKS = {"python": {"continues"}, "console": {"no-run"}}
WITH_BLOCKS = [page for page in PAGES if any(b.language in ("python", "console") for b in blocks(page))]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageSession]:
    for name in ("TASKHARBOR_APP", "TASKHARBOR_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    session = PageSession(tmp_path)
    yield session
    session.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def its_database(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a page that speaks of one."""
    if "$DATABASE_URL" not in page.read_text():
        yield
        return
    with store.database() as dsn:
        monkeypatch.setenv("DATABASE_URL", dsn)
        yield


@pytest.fixture
def its_brokers(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a page that speaks of them."""
    if "TASKHARBOR_BROKERS" not in "".join(block.text for block in blocks(page)):
        yield
        return
    with run_broker.running() as broker:
        monkeypatch.setenv("TASKHARBOR_BROKERS", broker.bootstrap)
        yield


@pytest.mark.usefixtures("its_database", "its_brokers")
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=named)
def test_page_does_what_it_says(page: Path, session: PageSession) -> None:
    for block in blocks(page):
        session.do(block)
    session.close()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_are_marked_as_documented(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, block.place
        if block.language in SITE:
            continue
        unknown = {mark for mark in block.marks if not mark.startswith(("file=", "append="))}
        assert unknown <= MARKS.get(block.language, set()), block.place


def test_every_block_of_the_readme_runs() -> None:
    for block in blocks(ROOT / "README.md"):
        assert block.language in ("python", "console", "output"), block.place
        assert "no-run" not in block.marks, block.place


def test_a_page_with_a_wrong_output_is_found_out() -> None:
    assert_output(["a … c", "…", "e"], "a b c\nd\nd\ne\n", "here")
    for wrong in ("a b\ne\n", "a b c\n", "a b c\ne\nf\n"):
        with pytest.raises(AssertionError):
            assert_output(["a … c", "…", "e"], wrong, "here")
