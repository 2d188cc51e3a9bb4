"""SVG as text. What comes from a job is escaped here, and nowhere else."""

from __future__ import annotations

import re
from html import escape

# XML allows no other control characters, and a browser shows an error instead of the picture.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Svg(str):
    """Text that is SVG already: a template puts it into the page as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def element(name: str, *children: str, **attributes: object) -> Svg:
    """Write an element. Children that are no `Svg` are text and are escaped; an attribute that is None is left out.

    `class_` is the attribute `class`, and an underscore in a name is a hyphen: `text_anchor`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(child if isinstance(child, Svg) else _text(child) for child in children)
    return Svg(f"<{name}{written}>{inner}</{name}>")


def picture(label: str, *children: str, **attributes: object) -> Svg:
    """Write the `svg` element of a picture, with the sentence that a screen reader says for it.

    A picture with links is a group of them: what is in an `img` cannot be reached.
    """
    role = "group" if any("<a " in child for child in children) else "img"
    return element("svg", *children, role=role, aria_label=label, **attributes)


def shortened(text: str, length: int) -> str:
    """Cut a text to a length that fits its place."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(_NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", str(value)))
