"""The page about reliability lists the bugs that the simulation has to find: all of them, and no others."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT
from tests.simulation.search import BUGS

# A list comes after the paragraph that names the file in which its bugs are planted.
_LIST = re.compile(
    r"`(?:tests/simulation/)?planted\w*\.py`.*(?:\n.+)*?:\n\n(?P<items>(?:- .+\n(?:  .+\n)*)+)"
)
_ITEM = re.compile(r"^- (?P<bug>.+(?:\n  .+)*)[;.]$", re.MULTILINE)


def test_page_lists_every_planted_bug() -> None:
    text = (ROOT / "docs/reliability.md").read_text()
    listed = [
        " ".join(item["bug"].split())
        for found in _LIST.finditer(text)
        for item in _ITEM.finditer(found["items"])
    ]
    assert sorted(listed) == sorted(BUGS)
