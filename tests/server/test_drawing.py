"""Pictures drawn by the server: well-formed, harmless whatever the text is, bounded, and true to what they show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.server.drawing import Bar, Mark, Node, Row, Run, graph, sparkline, strip, timeline
from taskharbor.server.drawing.svg import element
from taskharbor.server.drawing.timeline import BARS_MAX

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&\x00\x1b\u202e" + "x" * 10_000


def shapes(svg: str, name: str, kind: str = "") -> list[ET.Element]:
    return [
        each for each in ET.fromstring(svg).iter(name) if kind in each.get("class", "").split() or not kind
    ]


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "svg",
    [
        sparkline([1, None, 2], HOSTILE),
        strip([Run("dead", HOSTILE, HOSTILE)], HOSTILE),
        timeline(
            [Row(HOSTILE, [Bar("failed", NOON, None, HOSTILE, HOSTILE)], [Mark("x", NOON, HOSTILE)])],
            NOON,
            HOSTILE,
        ),
        graph([Node("1", HOSTILE, "dead", (), HOSTILE)], HOSTILE).svg,
    ],
    ids=["sparkline", "strip", "timeline", "graph"],
)
def test_hostile_text_is_text(svg: str):
    root = ET.fromstring(svg)
    assert not [each for each in root.iter() if each.tag in ("script", "style")]
    assert not re.search(r"<[^>]*\s(on\w+|style)=", svg)


@given(st.text(), st.text())
def test_every_text_is_written_so_that_xml_reads_it(text: str, value: str):
    read = ET.fromstring(element("text", text, x=value))
    assert len(read) == 0
    if text.isprintable() and value.isprintable():
        assert (read.text or "") == text
        assert read.get("x") == value


def test_the_largest_value_of_a_sparkline_is_at_the_top_and_none_is_a_gap():
    first, second = shapes(sparkline([0, 10, None, 5, 0], "jobs"), "polyline")
    heights = [
        float(point.split(",")[1]) for point in f"{first.get('points')} {second.get('points')}".split()
    ]
    assert heights == [26, 2, 14, 26]


def test_a_strip_shows_the_newest_fifty_runs_and_failures_as_lower_bars():
    runs = [Run("dead" if n == 59 else "succeeded", f"run {n}") for n in range(60)]
    bars = shapes(strip(runs, "runs"), "rect")
    assert [bars[0][0].text, bars[-1][0].text, len(bars)] == ["run 10", "run 59", 50]
    assert int(bars[-1].get("height", "")) < int(bars[0].get("height", ""))


def test_bars_stand_in_the_order_and_proportion_of_their_times():
    row = Row("job", [Bar("waiting", NOON, after(50), "waits"), Bar("running", after(50), None, "runs")])
    waiting, running = shapes(timeline([row], after(100), "the job"), "rect")
    assert (waiting.get("x"), waiting.get("width")) == ("0.00%", "50.00%")
    assert (running.get("x"), running.get("width")) == ("50.00%", "50.00%")
    assert "open" in running.get("class", "").split()


@given(st.integers(1, 40_000_000), st.integers(0, 10**9))
def test_an_axis_has_a_few_ticks_within_its_time(milliseconds: int, begin: int):
    start = datetime.fromtimestamp(begin, UTC)
    end = start + timedelta(milliseconds=milliseconds)
    svg = timeline([Row("job", [Bar("waiting", start, end, "")])], end, "the job")
    places = [float(each.get("x1", "").rstrip("%")) for each in shapes(svg, "line", "tick")]
    assert 1 <= len(places) <= 6
    assert places == sorted(places)


def test_a_timeline_shows_the_newest_bars_of_a_job_that_failed_often():
    bars = [Bar("failed", after(n), after(n + 0.5), str(n)) for n in range(3 * BARS_MAX)]
    shown = shapes(timeline([Row("attempts", bars)], after(10_000), "the job"), "rect")
    assert [shown[0][0].text, len(shown)] == [str(2 * BARS_MAX), BARS_MAX]


def test_an_empty_timeline_and_an_empty_graph_are_pictures_too():
    assert shapes(timeline([], NOON, "nothing"), "rect") == []
    assert graph([], "nothing").nodes == 0


# -- graphs ------------------------------------------------------------------------------------------


def boxes(svg: str) -> dict[str, tuple[float, float]]:
    """Read where each box stands, by the words of its title."""
    found = {}
    for group in shapes(svg, "g", "box"):
        rect = next(each for each in group if each.get("class") == "node")
        found[group[0].text or ""] = (float(rect.get("x", "")), float(rect.get("y", "")))
    return found


def test_a_job_stands_to_the_right_of_what_it_depends_on():
    drawn = graph(
        [
            Node("1", "load", "succeeded"),
            Node("2", "check", "running", ["1"]),
            Node("3", "report", "waiting", ["1", "2"]),
        ],
        "the workflow",
    )
    places = boxes(drawn.svg)
    x = [places[title][0] for title in ("load: 1 succeeded", "check: 1 running", "report: 1 waiting")]
    assert x == sorted(set(x))
    assert len(shapes(drawn.svg, "path", "edge")) == 3


def test_a_group_of_a_thousand_folds_into_one_box_with_its_counts():
    members = [Node(f"m{n}", "send", "dead" if n < 3 else "succeeded", ["first"]) for n in range(1_000)]
    last = Node("last", "report", "waiting", [each.id for each in members])
    drawn = graph([Node("first", "load", "succeeded"), *members, last], "the workflow")
    assert set(boxes(drawn.svg)) == {
        "load: 1 succeeded",
        "send: 3 dead, 997 succeeded",
        "report: 1 waiting",
    }
    [folded] = shapes(drawn.svg, "g", "folded")
    assert "dead" in folded.get("class", "").split()


def test_a_long_chain_folds_and_keeps_its_ends():
    chain = [Node(str(n), f"step {n}", "succeeded", [str(n - 1)] if n else []) for n in range(1_000)]
    drawn = graph(chain, "the workflow")
    assert (drawn.nodes, drawn.left_out) == (3, 0)
    assert {"step 0: 1 succeeded", "step 999: 1 succeeded"} < set(boxes(drawn.svg))


@given(st.lists(st.lists(st.integers(0, 100), max_size=3), max_size=60))
def test_every_member_is_drawn_or_counted_and_no_line_goes_back(dependencies: list[list[int]]):
    nodes = [
        Node(str(n), f"task {n % 3}", "ready", sorted({str(each) for each in before if each < n}))
        for n, before in enumerate(dependencies)
    ]
    drawn = graph(nodes, "the workflow")
    shown = [sum(map(int, re.findall(r"(\d+) ready", title))) for title in _titles(drawn.svg)]
    assert sum(shown) + drawn.left_out == len(nodes)
    for line in shapes(drawn.svg, "path", "edge"):
        x = [float(each) for each in re.findall(r"-?[\d.]+", line.get("d", ""))][::2]
        assert x[0] < x[-1]


def _titles(svg: str) -> list[str]:
    return [group[0].text or "" for group in shapes(svg, "g", "box")]
