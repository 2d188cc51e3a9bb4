"""The version of an application's code: workers store it with each failure."""

from __future__ import annotations

import os

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

VERSION_MAX = 100  # characters
VARIABLE = "TASKHARBOR_VERSION"


def checked_version(version: object) -> str | None:
    """Check what a caller gave as the version of the code; None if none was given."""
    if version is None:
        return None
    if not isinstance(version, str) or not 1 <= len(version) <= VERSION_MAX or not version.isprintable():
        raise ConfigurationError(
            f"version must be printable text of 1 to {VERSION_MAX} characters, such as '2026.11.3' or a commit, "
            f"not {shorten(version)}"
        )
    return version


def found_version(module: str) -> str | None:
    """Find a version that no caller gave: $TASKHARBOR_VERSION, else that of the distribution named like the package.

    `module` is where the application makes its harbor. Which distribution a package of another name belongs to takes
    a look at every installed one, which would cost each worker's start too much.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if given:
        return given[:VERSION_MAX] if given.isprintable() else None
    package = module.partition(".")[0]
    if not package or package.startswith("__") or package == "taskharbor":
        return None
    from importlib import metadata  # only workers ask for it

    try:
        return metadata.version(package)[:VERSION_MAX]
    except (metadata.PackageNotFoundError, ValueError, OSError, TypeError):
        return None
