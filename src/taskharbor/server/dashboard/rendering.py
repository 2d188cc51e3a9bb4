"""The template engine of the pages: everything is escaped, and a name that is not given is an error."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from taskharbor.server.dashboard.assets import address_of as asset_address

__all__ = ["asset_address", "engine", "render"]

NOTHING = "\N{EN DASH}"
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


@cache
def engine() -> Environment:
    """Build the engine once."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "number": number,
        "seconds": seconds,
        "percent": percent,
        "rate": rate,
        "iso": iso,
        "exact": exact,
        "ago": ago,
        "json": as_json,
        "sh": sh,
    }
    return env


def render(template: str, context: Mapping[str, Any]) -> str:
    return engine().get_template(template).render(context)


# -- filters ---------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Write a number with thousands apart; a dash for none."""
    if value is None:
        return NOTHING
    return (
        f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        if abs(value) >= 100 or value == int(value)
        else f"{value:.1f}"
    )


def seconds(value: float | timedelta | None) -> str:
    """Write a duration with the two units that matter: `350 ms`, `4.2 s`, `3 min 20 s`, `2 d 4 h`."""
    if value is None:
        return NOTHING
    length = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if length < 0:
        return f"-{seconds(-length)}"
    if length < 0.0995:
        return f"{length * 1000:.3g} ms" if length else "0 s"
    if length < 0.9995:
        return f"{length * 1000:.0f} ms"
    if length < 59.95:
        return f"{length:.1f}".removesuffix(".0") + " s" if length < 9.95 else f"{length:.0f} s"
    whole = round(length)
    for index, (unit, size) in enumerate(_UNITS):
        if whole >= size:
            lower, of_lower = _UNITS[index + 1] if index + 1 < len(_UNITS) else ("s", 1)
            rest = whole % size // of_lower
            return f"{whole // size} {unit} {rest} {lower}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def percent(value: float | None) -> str:
    """Write a share; a small one with a digit more."""
    if value is None:
        return NOTHING
    return f"{value * 100:.2g} %" if 0 < value < 0.1 else f"{value * 100:.0f} %"


def rate(value: float | None) -> str:
    """Write how many a second, or a minute if that is less than one a second."""
    if value is None:
        return NOTHING
    return f"{value:.3g}/s" if value >= 1 or value == 0 else f"{value * 60:.2g}/min"


def iso(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def exact(value: datetime) -> str:
    """Write an instant in full, in UTC."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(value: datetime, now: datetime | None = None) -> str:
    """Write how long ago an instant was, or how far it is ahead. The page's script keeps it up to date."""
    length = ((now or datetime.now(UTC)) - value).total_seconds()
    if abs(length) < 1:
        return "now"
    words = seconds(max(1, int(abs(length))))
    if abs(length) < 60:
        words = f"{int(abs(length))} s"
    return f"{words} ago" if length > 0 else f"in {words}"


def sh(value: object) -> str:
    """Write a word of a line to copy, so that a shell takes it as one word whatever it contains."""
    return shlex.quote(str(value))


def as_json(value: Any) -> str:
    """Write a value as JSON for an attribute, which the engine escapes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
