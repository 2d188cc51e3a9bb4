"""Checks a built site: it loads nothing from another server, has its pictures, its search and every public name.

    python -m tools.site build/docs

`make docs` runs it after Sphinx, which itself refuses a broken link and a page that no list has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import taskharbor

LOADED = re.compile(
    r"<(?:script|link|img|source|iframe)\b[^>]*\b(?:src|href|srcset)=\"((?:https?:)?//[^\"]+)\""
)
LOADED_BY_CSS = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)")
PICTURE = re.compile(r"<(?:img|source)\b[^>]*\b(?:src|srcset)=\"([^\"]+)\"")
ANCHOR = re.compile(r'id="(taskharbor\.[\w.]+)"')
LLMS_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)]+)\): \S", re.MULTILINE)


def faults(site: Path) -> Iterator[str]:
    """What is wrong with a built site, a line for each fault."""
    pages = {page: page.read_text() for page in sorted(site.glob("**/*.html"))}
    if not pages:
        yield f"{site} has no page: build the site first, with make docs"
        return
    yield from _loaded_from_elsewhere(site, pages)
    yield from _missing_pictures(site, pages)
    yield from _missing_names(site, pages)
    yield from _missing_from_search(site)
    yield from _missing_from_llms_txt(site)


def _loaded_from_elsewhere(site: Path, pages: dict[Path, str]) -> Iterator[str]:
    for page, text in pages.items():
        for address in LOADED.findall(text):
            yield f"{page.relative_to(site)} loads {address} from another server"
    for sheet in sorted(site.glob("_static/**/*.css")):
        for address in LOADED_BY_CSS.findall(sheet.read_text()):
            yield f"{sheet.relative_to(site)} loads {address} from another server"


def _missing_pictures(site: Path, pages: dict[Path, str]) -> Iterator[str]:
    for page, text in pages.items():
        for picture in PICTURE.findall(text):
            is_elsewhere = re.match(r"data:|(?:https?:)?//", picture)
            if not is_elsewhere and not (page.parent / picture.partition("?")[0]).exists():
                yield f"{page.relative_to(site)} shows {picture}, which does not exist"


def _missing_names(site: Path, pages: dict[Path, str]) -> Iterator[str]:
    reference = "".join(text for page, text in pages.items() if page.parent == site / "python")
    documented = {anchor.rpartition(".")[2] for anchor in ANCHOR.findall(reference)}
    for name in sorted(
        set(taskharbor.__all__) - documented - {"presets"}
    ):  # a module, with a section of its own
        yield f"python/ has no entry for taskharbor.{name}"


def _sources(site: Path) -> list[str]:
    found = (str(page.relative_to(site / "_sources")) for page in (site / "_sources").glob("**/*.md"))
    return sorted(page for page in found if page != "index.md")


def _missing_from_search(site: Path) -> Iterator[str]:
    index = site / "searchindex.js"
    text = index.read_text() if index.exists() else ""
    for page in _sources(site):
        if f'"{page.removesuffix(".md")}"' not in text:
            yield f"the search does not know {page}"


def _missing_from_llms_txt(site: Path) -> Iterator[str]:
    path = site / "llms.txt"
    listed = LLMS_ENTRY.findall(path.read_text()) if path.exists() else []
    for page in _sources(site):
        if listed.count(f"_sources/{page}") != 1:
            yield f"llms.txt lists {page} {listed.count(f'_sources/{page}')} times, not once with a sentence"


def main(folder: str) -> int:
    found = list(faults(Path(folder)))
    sys.stderr.writelines(f"error: {fault}\n" for fault in found)
    if not found:
        sys.stdout.write(f"The site is whole. Open {Path(folder, 'index.html')}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
