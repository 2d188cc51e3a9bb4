"""Links inside the documentation lead somewhere, and every page can be reached from the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import PAGES, ROOT, anchors, links, named


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_internal_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), (
                f"{named(page)} links to {target}; there are {sorted(anchors(file))}"
            )


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [
            (page.parent / target.partition("#")[0]).resolve()
            for target in links(page)
            if "://" not in target
        ]
        waiting += [target for target in targets if target.suffix == ".md"]
    assert set(PAGES) <= reached


def test_pages_keep_to_themselves() -> None:
    """No trailing blanks, no tabs, and no line that an editor has to wrap; tables and links may be longer."""
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            assert line == line.rstrip(), f"{named(page)}:{number} ends in blanks"
            assert "\t" not in line, f"{named(page)}:{number} has a tab"


def test_no_page_has_the_marks_of_a_merge_conflict() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            assert not line.startswith(("<" * 7, ">" * 7)), (
                f"{named(page)}:{number} is left of a merge: {line}"
            )
