"""Which metrics an expression of PromQL uses, and whether each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

from taskharbor.telemetry.metrics import catalogue

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

# What a word of an expression may be beside a metric: functions, operators and modifiers of PromQL, and labels.
WORDS = {
    "rate", "increase", "delta", "deriv", "histogram_quantile", "sum", "max", "topk", "by", "and", "unless", "offset",
    "job", "instance", "queue", "task", "state", "le", "label_values", "topic", "group", "partition",
}  # fmt: skip


def exported() -> dict[str, tuple[str, ...]]:
    """Return the name of every series that is exported, with its labels."""
    names: dict[str, tuple[str, ...]] = {}
    for metric in catalogue.METRICS:
        name = catalogue.PREFIX + metric.exported
        if metric.kind == "histogram":
            names[f"{name}_bucket"] = (*metric.labels, "le")
            names[f"{name}_sum"] = names[f"{name}_count"] = metric.labels
        else:
            names[name] = metric.labels
    return names


def unknown_words(expression: str) -> set[str]:
    """Return each word of an expression that is neither an exported name nor part of the language."""
    bare = re.sub(r'"[^"]*"', "", expression)  # values of labels
    bare = re.sub(r"\[[^]]*\]|\boffset \w+", "", bare)  # durations
    return set(re.findall(r"[A-Za-z_:][\w:]*", bare)) - WORDS - set(exported())


def used(expression: str) -> set[str]:
    return {name for name in exported() if re.search(rf"\b{name}\b", expression)}
