"""Every page has its place in the site, and what `make docs` checks after a build finds each fault.

The site itself is not built here: Sphinx needs 20 seconds for it, and `make docs` fails at every warning.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

import taskharbor
from docs import reference
from tests.docs.markdown import ROOT, blocks
from tools import site

DOCS = ROOT / "docs"
KINDS = ["Tutorials", "How-to guides", "Reference", "Explanation", "Project"]


def toctrees() -> dict[str, list[str]]:
    """The pages of each toctree of the index, by its caption."""
    found: dict[str, list[str]] = {}
    for block in blocks(DOCS / "index.md"):
        if block.language == "{toctree}":
            caption = re.search(r"^:caption: (.+)$", block.text, re.MULTILINE)
            assert caption, block.place
            patterns = [line for line in block.text.splitlines() if line and not line.startswith(":")]
            found[caption[1]] = [page for pattern in patterns for page in _matching(pattern)]
    return found


def _matching(pattern: str) -> list[str]:
    pages = sorted(str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.glob(f"{pattern}.md"))
    assert pages or "*" in pattern, f"docs/index.md: {pattern} matches no page"
    return pages


def test_every_page_is_in_exactly_one_toctree() -> None:
    listed = Counter(page for pages in toctrees().values() for page in pages)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.glob("**/*.md")} - {"index"}
    assert listed == Counter(pages), "docs/index.md lists every page once, below its kind"


def test_pages_are_sorted_by_their_kind() -> None:
    assert list(toctrees()) == KINDS


def test_the_python_reference_names_everything_that_is_public() -> None:
    text = "".join(page.read_text() for page in (DOCS / "python").glob("*.md"))
    classes = {path.rpartition(".")[2] for path in re.findall(r"^\.\. autoclass:: (\S+)", text, re.MULTILINE)}
    paths = re.findall(r"^\.\. automodule:: (\S+)", text, re.MULTILINE)
    modules = [importlib.import_module(path) for path in paths]
    documented = classes | {name for module in modules for name in getattr(module, "__all__", vars(module))}
    things = {thing.__name__ for section in reference.SECTIONS.values() for thing in section}
    assert not (set(taskharbor.__all__) | things) - documented


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A site of two pages, as Sphinx writes it."""
    names = "".join(f'<dt id="taskharbor.{name}">' for name in taskharbor.__all__ if name != "presets")
    files = {
        "start.html": '<link href="_static/furo.css"><img src="images/flow.svg"><a href="https://keda.sh">',
        "python/taskharbor.html": names,
        "images/flow.svg": "<svg/>",
        "_static/furo.css": "body { background: url(paper.png) }",
        "_sources/index.md": "# TaskHarbor",
        "_sources/start.md": "# Start",
        "_sources/python/taskharbor.md": "# taskharbor",
        "searchindex.js": 'Search.setIndex({"docnames":["start","python/taskharbor"]})',
        "llms.txt": "- [Start](_sources/start.md): Begin.\n- [Names](_sources/python/taskharbor.md): All.\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_whole_site_has_no_faults(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(site.faults(built)) == []
    assert site.main(str(built)) == 0
    assert str(built / "index.html") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        (
            "start.html",
            '<script src="https://cdn.example/x.js">',
            "https://cdn.example/x.js from another server",
        ),
        ("start.html", '<link href="//fonts.example/x">', "//fonts.example/x from another server"),
        (
            "_static/furo.css",
            "@import 'https://fonts.example/x'",
            "https://fonts.example/x from another server",
        ),
        ("start.html", '<img src="images/gone.svg">', "images/gone.svg, which does not exist"),
        ("python/taskharbor.html", '<dt id="taskharbor.Worker">', "no entry for taskharbor.Harbor"),
        ("searchindex.js", '["start"]', "search does not know python/taskharbor.md"),
        ("llms.txt", "- [Start](_sources/start.md): Begin.", "llms.txt lists python/taskharbor.md 0 times"),
    ],
)
def test_a_fault_of_the_site_is_reported(built: Path, name: str, text: str, fault: str) -> None:
    (built / name).write_text(text)
    assert any(fault in found for found in site.faults(built))
    assert site.main(str(built)) == 1


def test_an_empty_folder_is_no_site(tmp_path: Path) -> None:
    (fault,) = site.faults(tmp_path)
    assert "make docs" in fault
