"""The options of `taskharbor worker` and `taskharbor serve` for metrics."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from taskharbor.cli import cli


@pytest.mark.parametrize("option", [["--metrics-store"], ["--metrics-prefix", "x_"]])
def test_what_a_port_shows_needs_the_port(option: list[str]):
    run = CliRunner().invoke(cli, ["worker", "--url", "memory://", "--drain", *option])
    assert run.exit_code == 2
    assert f"{option[0]} says what --metrics-port shows: add --metrics-port" in run.output


@pytest.mark.parametrize("command", [["worker", "--drain", "--metrics-port", "9400"], ["serve"]])
def test_a_prefix_that_no_name_can_have_is_refused(command: list[str]):
    run = CliRunner().invoke(cli, [*command, "--url", "memory://", "--metrics-prefix", "a-b"])
    assert run.exit_code == 1
    assert "'a-b' cannot begin the name of a metric" in run.output


def test_without_the_extra_a_port_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "taskharbor.telemetry.metrics.exposition", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    run = CliRunner().invoke(cli, ["worker", "--url", "memory://", "--drain", "--metrics-port", "9400"])
    assert run.exit_code == 1
    assert "metrics need the extra: pip install 'taskharbor[metrics]'" in run.output
