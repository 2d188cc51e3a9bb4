"""--app: finding the application's Harbor, or saying why not."""

from __future__ import annotations

import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Write = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Write]:
    """Write a module into the current folder; its name is new each time."""
    names = []

    def write(source: str) -> str:
        names.append(f"app_{uuid.uuid4().hex}")
        (tmp_path / f"{names[-1]}.py").write_text(textwrap.dedent(source))
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


APP = """
    from taskharbor import Harbor

    harbor = Harbor()
    other = 42

    class inner:
        harbor = harbor

    @harbor.task(name="email:send", queue="mail", max_attempts=7)
    def send(to: str) -> str:
        return f"sent to {to}"
"""


def test_declarations_count_for_what_is_enqueued(run, module, url):
    app = module(APP)
    document = run("enqueue", "email:send", "to=a@b.c", "--json", "--app", f"{app}:harbor").document
    assert (document["queue"], document["maxAttempts"]) == ("mail", 7)
    error = run("enqueue", "email:send", "from=a", "-A", f"{app}:harbor", code=1).error
    assert "email:send" in error


@pytest.mark.parametrize("words", [["enqueue"], ["schedule", "add", "nightly", "--schedule", "@daily"]])
def test_text_where_a_number_is_wanted_is_told_how_to_be_written(run, module, words):
    app = module(
        """
        from taskharbor import Harbor

        harbor = Harbor()

        @harbor.task(name="nap")
        def nap(seconds: float) -> None: ...
        """
    )
    error = run(*words, "nap", "seconds=3", "-A", f"{app}:harbor", code=1).error
    assert error.endswith("seconds=… gives text, so write seconds:=3 for JSON")
    run(*words, "nap", "seconds:=3", "-A", f"{app}:harbor")


def test_the_application_may_come_from_the_environment(run, module, monkeypatch):
    monkeypatch.setenv("TASKHARBOR_APP", f"{module(APP)}:inner.harbor")
    assert run("enqueue", "email:send", "to=a", "--json").document["queue"] == "mail"
    assert run("enqueue", "email:send", "to=a", "--json", "--app", "").document["queue"] == "default"


def test_a_task_that_the_application_does_not_declare_is_worth_a_note(run, module):
    answer = run("enqueue", "emial:send", "to=a", "-A", f"{module(APP)}:harbor")
    assert "declares no task 'emial:send', only email:send" in answer.err


def test_an_application_with_a_store_of_its_own_does_not_take_another(run, module, url):
    app = module("""
        from taskharbor import Harbor
        harbor = Harbor("sqlite:///own.db")
    """)
    assert (
        f"keeps its jobs in sqlite:///own.db, not in {url}"
        in run("list", "-A", f"{app}:harbor", code=2).error
    )
    run("migrate", "-A", f"{app}:harbor", store=None)
    run("list", "-A", f"{app}:harbor", store=None)
    run("list", "-A", f"{app}:harbor", store="sqlite:///own.db")


@pytest.mark.parametrize("app", ["app", "app:", ":harbor"])
def test_an_application_is_module_and_object(run, app):
    assert "--app takes module:object" in run("list", "-A", app, code=2).error


def test_a_module_that_is_not_there(run, tmp_path):
    assert run("list", "-A", "no_such.app:harbor", code=1).error == (
        f"no module is called 'no_such' (--app no_such.app:harbor) in {tmp_path} or on Python's path"
    )


def test_an_object_that_is_not_there(run, module):
    app = module(APP)
    assert (
        run("list", "-A", f"{app}:habor", code=1).error
        == f"{app} has no 'habor'; perhaps you mean {app}:harbor"
    )
    assert f"{app}:other is not a Harbor but a int" in run("list", "-A", f"{app}:other", code=1).error


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("x = 1\nimport no_such_library\n", "No module named 'no_such_library'"),
        ("x = 1\nthis is no python\n", "SyntaxError"),
    ],
)
def test_a_module_that_fails_says_where(run, module, tmp_path, source, told):
    app = module(source)
    error = run("list", "-A", f"{app}:harbor", code=1).error
    assert error.startswith(f"{app} cannot be imported: ")
    assert told in error
    assert f"{app}.py, line 2)" in error


def test_a_module_that_ends_the_program_is_said_to(run, module, url):
    app = module("import sys\nsys.exit()")
    error = run("stats", "-A", f"{app}:harbor", code=1).error
    assert error.startswith(f"{app} ends the program when it is imported (")
    assert f"{app}.py, line 2)" in error


# -- tasks in several modules ----------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[str]:
    """A package whose tasks are in modules of their own, each of which imports the harbor."""
    name = f"shop_{uuid.uuid4().hex}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text(
        f"from taskharbor import Harbor\nharbor = Harbor(include=['{name}.orders'])\n"
    )
    for module in ("orders", "mail"):
        (package / f"{module}.py").write_text(
            f"from {name}.app import harbor\n\n"
            f"@harbor.task(name='{module}:work')\ndef work(n: int = 0) -> int:\n    return n\n"
        )
    (package / "broken.py").write_text("raise RuntimeError('out of order')\n")
    (package / "needs.py").write_text("import no_such_library\n")
    yield name
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[loaded]


def test_a_worker_imports_what_its_harbor_includes(run, harbor, shop):
    orders, mail = harbor.enqueue("orders:work"), harbor.enqueue("mail:work")
    answer = run("worker", "--drain", "-A", f"{shop}.app:harbor")
    assert "tasks: orders:work)" in answer.err
    assert (orders.refresh().state, mail.refresh().state) == ("succeeded", "scheduled")


def test_include_adds_modules_to_those_of_the_harbor(run, harbor, shop):
    jobs = [harbor.enqueue("orders:work"), harbor.enqueue("mail:work")]
    run("worker", "--drain", "-A", f"{shop}.app:harbor", "--include", f"{shop}.mail")
    assert [job.refresh().state for job in jobs] == ["succeeded"] * 2


def test_declarations_of_included_modules_count_for_what_is_enqueued(run, empty, shop):
    error = run("enqueue", "orders:work", "x=1", "-A", f"{shop}.app:harbor", code=1).error
    assert "orders:work" in error


def test_the_children_of_a_supervisor_import_them_as_well(started, harbor, url, shop, tmp_path):
    jobs = [harbor.enqueue("orders:work"), harbor.enqueue("mail:work")]
    words = (
        "--processes",
        "1",
        "--drain",
        "--url",
        url,
        "-A",
        f"{shop}.app:harbor",
        "--include",
        f"{shop}.mail",
    )
    process = started("worker", *words, cwd=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [job.refresh().state for job in jobs] == ["succeeded"] * 2


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("{shop}.nothing", "no module is called '{shop}.nothing'"),
        ("nothing_at_all.here", "no module is called 'nothing_at_all'"),
        ("{shop}.broken", "cannot be imported: RuntimeError: out of order"),
        ("{shop}.needs", "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'"),
        ("{shop}/mail.py", "as an import writes them"),
    ],
)
def test_a_module_that_cannot_be_included_is_told_in_one_line(run, empty, shop, module, told):
    words = ("worker", "--drain", "-A", f"{shop}.app:harbor", "--include", module.format(shop=shop))
    assert told.format(shop=shop) in run(*words, code=1).error


def test_include_needs_an_application(run, empty):
    assert "name that as well, with --app" in run("worker", "--include", "shop.mail", code=2).error
