"""Copying everything that one store keeps into another: `taskharbor copy`."""

from __future__ import annotations

from taskharbor.copying.copy import CopiedKind, CopyReport, copy_store

__all__ = ["CopiedKind", "CopyReport", "copy_store"]
