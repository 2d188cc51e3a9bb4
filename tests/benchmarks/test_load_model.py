"""The load model: which resource ends first, and that it describes what was measured."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.load_model import (
    Costs,
    Drained,
    Enqueued,
    Idle,
    Server,
    bound_together,
    capacity,
    fit,
    limits,
    line,
    predicted_together,
)
from benchmarks.load_report import capacity_table, nice_above, picture

COSTS = Costs(
    worker_us=10,
    server_us=8,
    server_us_more=0,
    claim_us=4,
    log_bytes=250,
    enqueue=Enqueued(server_us=8, log_bytes=250),
    idle_us_per_second=500,
    efficiency=1.0,
)
SERVER = Server(cores=16, log_bytes_per_second=200e6, connections=400, load=1.0)


def test_line_goes_through_points_and_never_falls() -> None:
    assert line([(0, 2.0), (1, 4.0), (3, 8.0)]) == pytest.approx((2.0, 2.0))
    assert line([(0, 3.0), (2, 1.0)]) == (2.0, 0.0)


@pytest.mark.parametrize(
    ("server", "first", "rate"),
    [
        (replace(SERVER, cores=2), "server's processor", 125_000),
        (SERVER, "claims of one harbor", 250_000),
        (replace(SERVER, log_bytes_per_second=50e6), "server's log", 100_000),
        (replace(SERVER, connections=16), "connections", 200_000),
    ],
)
def test_least_resource_is_the_capacity(server: Server, first: str, rate: float) -> None:
    found = capacity(COSTS, server, connections_of_process=8)
    assert found.ends_first == first
    assert found.jobs_per_second == pytest.approx(rate)


def test_no_more_processes_than_are_needed() -> None:
    assert capacity(COSTS, replace(SERVER, cores=2), connections_of_process=8).processes == 2
    assert capacity(COSTS, SERVER, connections_of_process=8).processes == 3


def test_idle_workers_take_from_the_processor() -> None:
    busy = limits(COSTS, SERVER, 1, idle_workers=16_000)["server's processor"]
    assert busy == pytest.approx(limits(COSTS, SERVER, 1)["server's processor"] / 2)
    assert limits(COSTS, SERVER, 1, idle_workers=10**6)["server's processor"] == 0


def test_fit_finds_the_costs_that_the_measurements_were_made_with() -> None:
    truth = replace(COSTS, server_us_more=1.5, efficiency=0.8)
    drained = [
        Drained(count, predicted_together(truth, count, 2), 10, truth.server_us_at(count), 250)
        for count in (1, 2, 4, 8)
    ]
    idle = [Idle(count, 100 + 500 * count) for count in (10, 100, 1_000)]
    found = fit(drained, idle, truth.enqueue, truth.claim_us, cores=2)
    assert vars(found) == {
        name: pytest.approx(value) if isinstance(value, float) else value
        for name, value in vars(truth).items()
    }


def test_workers_and_server_share_the_cores_of_one_machine() -> None:
    assert bound_together(COSTS, 1, 2) == pytest.approx(100_000)  # one process computes on one core
    assert bound_together(COSTS, 4, 2) == pytest.approx(2e6 / 18)


def test_table_and_picture_tell_the_same_capacity() -> None:
    row = next(row for row in capacity_table(COSTS).rows if row[0] == "16")
    assert f"16 cores carry {row[1]} jobs a second, {row[2]} end first" in picture(COSTS)


@pytest.mark.parametrize("log_bytes", [250, 25])
def test_legend_names_the_curves_that_are_in_the_picture(log_bytes: float) -> None:
    drawn = picture(replace(COSTS, log_bytes=log_bytes, enqueue=Enqueued(server_us=8, log_bytes=log_bytes)))
    curves = re.findall(r'<polyline class="curve (\w+)" points="[^"]', drawn)
    named = re.findall(r'<path class="curve (\w+)"', drawn)
    assert sorted(named) == sorted(curves)
    assert ("log" in named) == (log_bytes == 250)


@pytest.mark.parametrize(("value", "above"), [(1, 1), (3, 4), (81_000, 100_000), (199_999, 200_000)])
def test_axis_ends_at_a_round_number(value: float, above: float) -> None:
    assert nice_above(value) == above
