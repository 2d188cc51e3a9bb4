"""The Grafana dashboard: every expression is valid, and about metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it says nothing of its types

from taskharbor.telemetry.metrics import catalogue
from tests.deploy.expressions import DEPLOY, unknown_words, used
from tools import promtool

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "taskharbor.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


def expressions() -> Iterator[tuple[str, str]]:
    for title, panel in PANELS.items():
        for target in panel["targets"]:
            yield f"{title} {target['refId']}", target["expr"]


def filled_in(expression: str) -> str:
    """Return the expression as Grafana sends it."""
    return expression.replace("$__rate_interval", "1m").replace("$queue", ".*").replace("$task", ".*")


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_each_expression_uses_metrics_that_exist(place: str, expression: str):
    assert unknown_words(filled_in(expression)) == set()
    assert used(expression)


def test_prometheus_accepts_every_expression(tmp_path: Path):
    rules = [
        {"record": f"panel:{number}", "expr": filled_in(expression)}
        for number, (_, expression) in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run = promtool.run("check", "rules", file)
    assert run.returncode == 0, run.stdout
    assert f"{len(rules)} rules found" in run.stdout


def test_every_metric_is_on_the_dashboard():
    shown = {name for _, expression in expressions() for name in used(expression)}
    for metric in catalogue.METRICS:
        assert any(name.startswith(catalogue.PREFIX + metric.exported) for name in shown), metric.name


def test_every_panel_and_variable_asks_the_chosen_data_source():
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS.values():
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])
    for name in ("queue", "task"):
        assert VARIABLES[name]["datasource"] == chosen


@pytest.mark.parametrize("name", ["queue", "task"])
def test_queues_and_tasks_can_be_chosen_all_at_once(name: str):
    variable = VARIABLES[name]
    assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".*")
    assert unknown_words(filled_in(variable["query"]["query"])) == set()


def test_rates_follow_the_scrape_interval():
    ranges = {found for _, expression in expressions() for found in re.findall(r"\[[^]]*\]", expression)}
    assert ranges == {"[$__rate_interval]", "[10m]"}  # the latter as in the alert on the retry rate


def test_the_dashboard_has_a_fixed_uid_and_panels_have_ids_titles_and_a_place_of_their_own():
    assert DASHBOARD["uid"] == "taskharbor"
    assert "id" not in DASHBOARD  # Grafana gives it one
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(PANELS) == sum(panel["type"] != "row" for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(panel["description"] for panel in PANELS.values())
