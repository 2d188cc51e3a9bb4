"""The alert rules: valid, tested, and about metrics that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]  # it says nothing of its types

from taskharbor.cli import cli
from taskharbor.telemetry.metrics import catalogue
from tests.deploy.expressions import DEPLOY, unknown_words, used
from tools import promtool

RULES = DEPLOY / "prometheus" / "alerts.yml"
CASES = DEPLOY / "prometheus" / "alerts_test.yml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}


def test_prometheus_accepts_the_rules():
    run = promtool.run("check", "rules", RULES)
    assert run.returncode == 0, run.stdout


def test_the_rules_fire_and_stay_quiet_as_their_cases_say():
    run = promtool.run("test", "rules", CASES)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(alert: str):
    tests = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    expected = [bool(case["exp_alerts"]) for case in tests if case["alertname"] == alert]
    assert set(expected) == {True, False}


@pytest.mark.parametrize(("fires", "expression"), [("never", "vector(1) > 2"), ("always", "vector(1)")])
def test_the_cases_notice_an_alert_that_never_or_always_fires(fires: str, expression: str, tmp_path: Path):
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = expression
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    run = promtool.run("test", "rules", tmp_path / CASES.name)
    assert run.returncode == 1
    assert set(re.findall(r"alertname: (\w+)", run.stdout)) == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_uses_metrics_that_exist_and_says_what_to_do(alert: str):
    rule = ALERTS[alert]
    assert unknown_words(rule["expr"]) == set()
    assert used(rule["expr"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_a_metric_that_does_not_exist_is_found():
    assert unknown_words('sum by (queue) (rate(taskharbor_retried_total{task="x"}[5m])) > 1') == {
        "taskharbor_retried_total"
    }


def test_commands_in_alerts_exist():
    commands = re.findall(r"`(taskharbor [^`]*)`", re.sub(r"\s+", " ", RULES.read_text()))
    assert commands
    context = click.Context(cli)
    for command in commands:
        words = shlex.split(re.sub(r"\{\{.*?\}\}", "x", command))[1:]
        found = cli.get_command(context, words[0])
        if isinstance(found, click.Group):
            found = found.get_command(context, words[1])
        assert found is not None, command
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, command


def test_the_seeds_metrics_have_alerts():
    expressions = " ".join(rule["expr"] for rule in ALERTS.values())
    for metric in (catalogue.RETRIED, catalogue.EXHAUSTED, catalogue.RETRY_LATENCY):
        assert f"{catalogue.PREFIX}{metric.exported}" in expressions
