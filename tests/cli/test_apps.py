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


TYPED = """
    from dataclasses import dataclass
    from datetime import datetime
    from decimal import Decimal
    from enum import Enum
    from uuid import UUID

    from taskharbor import Harbor

    harbor = Harbor()

    class Colour(Enum):
        RED = "red"
        BLUE = "blue"

    class Size(Enum):
        SMALL = 1
        LARGE = 2

    @dataclass
    class Address:
        street: str
        number: int

    @harbor.task(name="order", parameter_aliases={"amount": "count"})
    def order(
        count: int = 0,
        weight: float = 0.0,
        express: bool = False,
        code: str = "",
        note: str | None = None,
        price: Decimal = Decimal(0),
        due: datetime | None = None,
        id: UUID | None = None,
        colour: Colour = Colour.RED,
        size: Size = Size.SMALL,
        limit: int | None = None,
        items: list[int] = [],
        stock: dict[str, int] = {},
        address: Address | None = None,
        anything=None,
    ) -> None: ...
"""
UUID_TEXT = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"
ENQUEUE = ["enqueue"]
SCHEDULE = ["schedule", "add", "nightly", "--schedule", "@daily"]


@pytest.mark.parametrize("words", [ENQUEUE, SCHEDULE], ids=["enqueue", "schedule"])
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("count=3", 3),
        ("count:=3", 3),
        ("amount=3", 3),
        ("weight=2.5", 2.5),
        ("weight=2", 2),
        ("express=true", True),
        ("express=false", False),
        ("code=3", "3"),
        ("code=true", "true"),
        ('code="3"', '"3"'),
        ("note=null", "null"),
        ("note:=null", None),
        ("price=0.10000000000000000000001", "0.10000000000000000000001"),
        ("due=2026-01-31T08:00:00+02:00", "2026-01-31T08:00:00+02:00"),
        (f"id={UUID_TEXT}", UUID_TEXT),
        ("colour=blue", "blue"),
        ("size=2", 2),
        ("limit=null", None),
        ("limit=9", 9),
        ("items=[1, 2]", [1, 2]),
        ('stock={"a": 1}', {"a": 1}),
        ('address={"street": "Elm", "number": 7}', {"street": "Elm", "number": 7}),
        ("anything=3", "3"),
    ],
)
def test_text_becomes_what_the_parameter_is_annotated_with(run, module, words, word, value):
    app = module(TYPED)
    payload = run(*words, "order", word, "-A", f"{app}:harbor", "--json").document["payload"]
    name = word.partition("=")[0].removesuffix(":")
    assert payload == {name: value}
    assert type(payload[name]) is type(value)


@pytest.mark.parametrize("words", [ENQUEUE, SCHEDULE], ids=["enqueue", "schedule"])
@pytest.mark.parametrize(
    ("word", "given", "problem", "expected"),
    [
        ("count=many", "count='many'", "expected `int`", "count takes int"),
        ("count=2.5", "count='2.5'", "expected `int`, got `float`", "count takes int"),
        ("count=", "count=''", "expected `int`", "count takes int"),
        ("express=yes", "express='yes'", "expected `bool`", "express takes true or false"),
        ("colour=green", "colour='green'", "invalid enum value 'green'", "colour takes one of 'red', 'blue'"),
        ("size=3", "size='3'", "invalid enum value 3", "size takes one of 1, 2"),
        ("id=7", "id='7'", "invalid UUID", "id takes uuid.UUID | None"),
        (
            'items=[1, "x"]',
            "items='[1, \"x\"]'",
            "at [1]: expected `int`, got `str`",
            "items takes list[int]",
        ),
    ],
)
def test_text_that_does_not_fit_is_refused_with_what_the_parameter_takes(
    run, module, words, word, given, problem, expected
):
    error = run(*words, "order", word, "-A", f"{module(TYPED)}:harbor", code=1).error
    assert error == f"task 'order' cannot take {given}: {problem}; {expected}"


def test_without_the_code_of_the_task_text_stays_text(run, module):
    assert run("enqueue", "order", "count=3", "--json").document["payload"] == {"count": "3"}
    words = ["enqueue", "unknown", "count=3", "-A", f"{module(TYPED)}:harbor", "--json"]
    assert run(*words).document["payload"] == {"count": "3"}


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
    told = run("list", "-A", "no_such.py:harbor", code=1).error
    assert told.endswith("; write it without .py: no_such:harbor")


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
    assert "importlib" not in error


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
    assert "name the application as well, with --app" in run("worker", "--include", "shop.mail", code=2).error
