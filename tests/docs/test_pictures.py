"""The pictures show what the code does."""

from __future__ import annotations

import re

from taskharbor.rules.lifecycle import LEGAL
from tests.docs.markdown import ROOT


def test_picture_of_states_shows_every_legal_move() -> None:
    picture = (ROOT / "docs/images/states.svg").read_text()
    moves = " ".join(re.findall(r'data-moves="([^"]+)"', picture)).split()
    assert sorted(moves) == sorted(f"{before}>{after}" for before in LEGAL for after in LEGAL[before])
