"""The pytest plugin of .ci/run, which runs the tests that failed a second time: alone, one after the other.

    pytest -n 3 -p tools.flaky --failed-tests FILE      write into FILE which tests failed
    pytest -n 0 -p tools.flaky --alone @FILE            run these, and name those that pass now

There is no FILE if the failures say that something is wrong: a run that broke off, a module that cannot be imported, or
more than ten tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

MOST = 10  # more failures than these are no accident


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flaky tests")
    group.addoption(
        "--failed-tests", metavar="FILE", type=Path, help="write the names of failed tests into FILE"
    )
    group.addoption("--alone", action="store_true", help="every test of this run has failed beside others")


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--failed-tests")
    # A process of xdist knows only its own tests.
    if file is not None and not hasattr(config, "workerinput"):
        file.unlink(missing_ok=True)
        config.pluginmanager.register(FailedTests(file))
    if config.getoption("--alone"):
        config.pluginmanager.register(FlakyTests())


class FailedTests:
    """The tests of a run that failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}
        self._is_whole = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._is_whole = self._is_whole and not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        ended = exitstatus == pytest.ExitCode.TESTS_FAILED
        if ended and self._is_whole and len(self._failed) <= MOST:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("".join(f"{each}\n" for each in self._failed), encoding="utf-8")


class FlakyTests:
    """The tests that failed beside others, and pass alone."""

    def __init__(self) -> None:
        self._passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and not report.failed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flaky = [each for each, passed in self._passed.items() if passed]
        if flaky:
            terminalreporter.section("failed beside other tests, passed alone", red=True, bold=True)
        for each in flaky:
            terminalreporter.line(f"flaky: mend it: {each}", red=True)
