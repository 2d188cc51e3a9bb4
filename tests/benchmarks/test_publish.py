"""Publishing: a page's tables come from a file of measurements, section by section."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import publish
from benchmarks.contestant import Contestant
from benchmarks.contestants.taskharbor_memory import TaskHarborMemory
from benchmarks.discovery import Entry, Field
from benchmarks.publish import (
    BENCHMARKS,
    LOAD,
    Page,
    Section,
    command_line,
    overview,
    ratios_table,
    sized,
    written,
)
from benchmarks.report import Table
from benchmarks.rounds import Samples
from benchmarks.settings import Settings

ROOT = Path(__file__).parents[2]


class Ours(TaskHarborMemory):
    name = "ours"


class Theirs(TaskHarborMemory):
    name = "theirs"
    role = "peer"


def samples() -> Samples:
    seen = Samples()
    for number, (ours, theirs) in enumerate([(20.0, 10.0), (30.0, 10.0), (30.0, 30.0)], 1):
        seen.add("ours", {"drain": ours, "worker_cpu": 5.0}, number)
        seen.add("theirs", {"drain": theirs, "worker_cpu": 10.0}, number)
    return seen


def test_overview_has_the_best_first_and_a_dash_for_what_was_not_measured() -> None:
    seen = samples()
    seen.add("ours", {"drain_sync": 4.0})
    table = overview("rates", {"drain": "drain", "drain_sync": "sync"}, [Theirs, Ours], seen)
    assert table.rows == [
        ["ours", "30.0 (20.0\N{EN DASH}30.0)", "4.00"],
        ["theirs", "10.0 (10.0\N{EN DASH}30.0)", "\N{EN DASH}"],
    ]


def test_ratios_are_of_a_round_and_above_one_is_better() -> None:
    table = ratios_table("ours", ["drain", "worker_cpu"], [Ours, Theirs], samples())
    assert table.rows == [["theirs", "2.00x (1.00\N{EN DASH}3.00)", "2.00x (2.00\N{EN DASH}2.00)"]]


def test_tables_replace_what_stands_between_the_comments() -> None:
    page = "before\n<!-- results: a -->\nold\n<!-- end of results: a -->\nafter\n"
    once = written(page, "a", "new \\1")
    assert once == "before\n<!-- results: a -->\n\nnew \\1\n\n<!-- end of results: a -->\nafter\n"
    assert written(once, "a", "new \\1") == once
    with pytest.raises(SystemExit, match="must have one"):
        written(page, "b", "new")


def test_every_section_has_its_place_on_the_page() -> None:
    for name, sections in (("benchmarks.md", BENCHMARKS), ("scaling.md", LOAD)):
        text = (ROOT / "docs" / name).read_text("utf-8")
        places = re.findall(r"<!-- results: (\S+) -->", text)
        assert sorted(places) == sorted(["machine", *(section.name for section in sections)])


def test_a_section_is_never_larger_than_it_may_be() -> None:
    section = Section("a", 1, lambda one: True, run, tables, {"jobs": 7}, rounds_max=2)
    assert (sized(section, Settings(), quick=False).jobs, sized(section, Settings(), quick=False).rounds) == (
        7,
        2,
    )
    assert sized(section, Settings.quick(), quick=True).jobs == Settings.quick().jobs
    assert sized(section, Settings.quick(), quick=True).rounds == 1


ran: list[str] = []


def run(entries: Sequence[Entry], settings: Settings, scratch: Path) -> Samples:
    ran.append(entries[0].contestant.name)
    seen = samples()
    seen.failures.append("drain 1/1 broken: no such table")
    return seen


def tables(contestants: Sequence[type[Contestant]], seen: Samples, settings: Settings) -> list[Table]:
    return [overview("rates", {"drain": "drain"}, contestants, seen)]


@pytest.fixture
def page(tmp_path: Path) -> Page:
    path = tmp_path / "page.md"
    names = ("machine", "first", "second")
    path.write_text("\n".join(f"<!-- results: {name} -->\n<!-- end of results: {name} -->" for name in names))
    ran.clear()
    everybody = [Section(name, 1, lambda one: True, run, tables) for name in names[1:]]
    return Page(path, everybody)


def published(page: Page, results: Path, wanted: list[str] | None = None) -> int:
    found = Field(
        [Entry("ours", Ours), Entry("theirs", Theirs)], {"absent_postgres": "not installed: absent"}
    )

    def machine(servers: ExitStack) -> dict[str, str]:
        return {"date": "today", "processor": "fast"}

    settings = Settings.quick()
    return publish.publish(
        page, results, found, settings, page.path.parent, wanted=wanted, quick=True, machine=machine
    )


def test_a_section_that_is_in_the_file_is_not_measured_again(page: Page, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    assert published(page, results, ["second"]) == 1  # the failure that it has
    assert list(json.loads(results.read_text())) == ["second"]
    assert "| ours |" in page.path.read_text()
    assert published(page, results) == 2
    assert published(page, results) == 2
    assert ran == ["ours", "ours"]


def test_one_section_from_a_new_file_leaves_the_contestants_of_the_others_on_the_page(
    page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(page, tmp_path / "results.json")
    contestants = publish.part_of(page.path.read_text(), "machine")
    text = page.path.read_text()
    page.path.write_text(text.replace("| theirs |", "| a peer |", 1))
    published(page, tmp_path / "new.json", ["second"])
    assert publish.part_of(page.path.read_text(), "machine") == contestants.replace(
        "| theirs |", "| a peer |"
    )
    assert "stay as they are: new.json lacks first" in capsys.readouterr().out


def test_a_page_that_is_not_there_is_said_before_anything_is_measured(page: Page, tmp_path: Path) -> None:
    page.path.unlink()
    with pytest.raises(SystemExit, match="there is no page"):
        published(page, tmp_path / "results.json")
    assert ran == []


def test_the_page_names_machine_command_versions_and_failures(page: Page, tmp_path: Path) -> None:
    published(page, tmp_path / "results.json")
    text = page.path.read_text()
    for told in ("- processor: fast", "`python -m benchmarks", "| ours | 0.", "not installed: absent"):
        assert text.count(told) == 1
    assert text.count("- Not measured: drain 1/1 broken: no such table") == 2


def test_the_command_names_files_without_their_folder() -> None:
    assert command_line(["--publish", "/home/me/results.json", "--rounds", "3"]) == (
        "python -m benchmarks --publish results.json --rounds 3"
    )


def test_an_unknown_section_is_refused(page: Page, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no section third: there are first, second"):
        published(page, tmp_path / "results.json", ["third"])


def test_the_readme_quotes_the_published_figures() -> None:
    page, readme = ((publish.ROOT / name).read_text("utf-8") for name in ("docs/benchmarks.md", "README.md"))
    rates = [row.split(" | ") for row in page.splitlines() if row.startswith("| taskharbor postgres | ")]
    [drained] = re.findall(r"drains\s+([\d,]+) jobs a second", readme)
    assert any(drained == cell.split(" ")[0] for row in rates for cell in row)
    ratios = page.partition("Taskharbor postgres, times better than")[2]
    for times, library in re.findall(r"([\d.]+) times ([\w-]+) \(", readme):
        tuned = " tuned" if library == "graphile-worker" else ""
        [row] = re.findall(rf"(?mi)^\| {library}{tuned} \|.*$", ratios.partition("###")[0])
        measured = float(row.split(" | ")[4].partition("x")[0])
        assert float(times) == pytest.approx(measured, abs=0.051), library
