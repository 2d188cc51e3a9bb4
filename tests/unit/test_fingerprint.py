"""Fingerprints: one cause has one, whatever varies from job to job; another cause has another."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.rules.fingerprint import (
    FINGERPRINT_LENGTH,
    MESSAGE_MAX,
    _pattern_of,
    application_frames,
    message_pattern,
    of_error,
    of_kind,
)
from taskharbor.worker.handlers.outcomes import of_failure


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fingerprint(function: Callable[[], object]) -> str:
    error = raised(function)
    return of_error(error, str(error))


def refuse(text: str) -> None:
    raise ValueError(text)


ALIKE = [
    ("user 4711 has no address", "user 12 has no address"),
    (
        "order 0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10 is gone",
        "order 5d1f9a3b-8a5e-7cc3-98c8-0197f3c28a5e is gone",
    ),
    ("no blob deadbeef", "no blob cafe0123aa"),
    ("at 2026-11-18T04:10:22Z: closed", "at 2025-01-02T23:59:59.123Z: closed"),
    ("took 1.532 s of 1,000 ms", "took 27 s of 30 ms"),
    ("cannot reach https://a.example/x?y=1 now", "cannot reach http://b.example:8080/ now"),
    ("no file /srv/data/17.csv here", "no file C:\\data\\x.csv here"),
    ("mail to ann@example.org bounced", "mail to bob+x@mail.example bounced"),
    ("connect to 10.1.2.3:5432 refused", "connect to [::1]:5433 refused"),
    ("object at 0x7f30a1b2 is bad", "object at 0x55aa11 is bad"),
    ("key 'colour' is missing", "key 'the size of it' is missing"),
    ('no "left" in it', 'no "right \' or wrong" in it'),
    ("customer cus_NffrFeUfNVxHib unknown", "customer cus_9ffrFeUf4V2Hib unknown"),
    ("missing 1, 2 and 3", "missing 4, 5, 6 and 7"),
    ("failed (code=17, retry=3)", "failed (code=4, retry=11)"),
    ("the same\nline 2 differs 1", "the same\nit does"),
    ("\n\n  late begin", "late begin"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_varies_from_job_to_job_does_not_count(one: str, other: str) -> None:
    assert message_pattern(one) == message_pattern(other)
    assert fingerprint(lambda: refuse(one)) == fingerprint(lambda: refuse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no address", "no name"),
        ("can't open it", "can't close it"),
        ("user 4711 has no address", "order 4711 has no address"),
        ("ConnectionResetError: x", "ConnectionRefusedError: x"),
    ],
)
def test_words_count(one: str, other: str) -> None:
    assert fingerprint(lambda: refuse(one)) != fingerprint(lambda: refuse(other))


def test_type_and_function_and_root_cause_count() -> None:
    def here() -> None:
        raise ValueError("x")

    def there() -> None:
        raise ValueError("x")

    class Own(ValueError):
        pass

    def own() -> None:
        raise Own("x")

    def from_key() -> None:
        try:
            {"b": 1}["a"]
        except KeyError as error:
            raise ValueError("x") from error

    def from_number() -> None:
        try:
            int("x")
        except ValueError:
            here()

    found = [fingerprint(each) for each in (here, there, own, from_key, from_number)]
    assert len(set(found)) == len(found)
    assert fingerprint(here) == found[0]
    assert all(re.fullmatch(f"[0-9a-f]{{{FINGERPRINT_LENGTH}}}", each) for each in found)


def test_lines_do_not_count() -> None:
    """Another line of the same function, as after a comment was added, is the same cause."""

    def either(first: bool) -> None:
        if first:
            raise ValueError("x")
        raise ValueError("x")

    assert fingerprint(lambda: either(True)) == fingerprint(lambda: either(False))


def test_first_error_of_a_group_is_its_cause() -> None:
    def group(error: Exception) -> Callable[[], None]:
        def run() -> None:
            raise ExceptionGroup("several", [error])

        return run

    assert fingerprint(group(ValueError("x"))) != fingerprint(group(KeyError("x")))


def test_only_the_application_counts_among_the_frames() -> None:
    """The standard library does not; a function that calls itself counts once."""

    def deep(left: int) -> object:
        return json.loads("{") if left == 0 else deep(left - 1)

    shallow, deeper = raised(lambda: deep(1)), raised(lambda: deep(7))
    names = [each.rpartition(".")[2] for each in application_frames(shallow.__traceback__)]
    assert names[-1] == "deep"
    assert not any("json" in each for each in application_frames(shallow.__traceback__))
    assert of_error(shallow, str(shallow)) == of_error(deeper, str(deeper))


def test_ids_of_many_kinds_never_split_a_group() -> None:
    """10,000 ids of each kind, some of which have no digit by chance."""
    random = Random(7)
    kinds: list[Callable[[], str]] = [
        lambda: str(uuid.UUID(int=random.getrandbits(128))),
        lambda: f"{random.getrandbits(32):08x}",
        lambda: f"{random.getrandbits(160):040x}",
        lambda: str(random.randrange(10**9)),
        lambda: (
            "cus_"
            + "".join(random.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=24))
        ),
    ]
    for kind in kinds:
        assert len({message_pattern(f"cannot charge {kind()}: declined") for _ in range(10_000)}) == 1


HOSTILE = [
    "'",
    '"',
    "`",
    "a",
    "é",
    "/",
    "\\",
    "@",
    "0",
    " ",
    "a1",
    "'a",
    "a' ",
    "aA",
    "://",
    "-",
    "(",
    "\t",
    "\x00",
    "\ud800",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_megabyte_costs_next_to_nothing(piece: str) -> None:
    """Only the beginning of a text is looked at, and that in linear time."""
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    for _ in range(10):
        _pattern_of.cache_clear()
        assert len(message_pattern(text)) <= MESSAGE_MAX
    assert time.process_time() - began < 0.5


@given(st.text(max_size=3_000))
def test_any_text_has_a_pattern(text: str) -> None:
    pattern = message_pattern(text)
    assert len(pattern) <= MESSAGE_MAX
    assert "\n" not in pattern


@given(st.text(alphabet="ab1٣_-='\"`“”«»()[]<>|, ;:.!?/\\@…é²X\t ", max_size=60))
def test_numbers_may_all_be_alike_before_a_line_is_read(text: str) -> None:
    """Patterns are remembered by lines in which every number is 0: it is the pattern of the line itself."""
    assert message_pattern(text) == _pattern_of.__wrapped__(text.lstrip())


def test_error_whose_own_code_fails_has_a_fingerprint() -> None:
    class Mean(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise SystemExit(4)

    failed = of_failure(raised(lambda: (_ for _ in ()).throw(Mean())))
    assert re.fullmatch("[0-9a-f]{16}", failed.fingerprint or "")


def test_kinds_differ_by_task_and_kind() -> None:
    found = {of_kind(task, kind) for task in ("a", "b") for kind in ("lost", "timed_out")}
    assert len(found) == 4
    assert of_kind("a", "lost") == sha256(b"1\nkind\na\nlost").hexdigest()[:16]  # stored: it must not change


def test_equal_code_of_two_modules_has_two_fingerprints() -> None:
    """Python calls code objects equal that differ in nothing but their file."""
    found = []
    for name in ("one", "other"):
        namespace: dict[str, Any] = {"__name__": name}
        exec(compile("def fail():\n    raise ValueError('x')", f"/app/{name}.py", "exec"), namespace)
        found.append(fingerprint(namespace["fail"]))
    assert found[0] != found[1]


def test_five_innermost_functions_count_and_no_more() -> None:
    """A sixth one says where the work came from, and not what failed."""

    def calls(*names: str) -> str:
        namespace: dict[str, Any] = {"__name__": "app"}
        lines = ["def f0(): raise ValueError('x')"]
        lines += [f"def {name}(): {'f0' if n == 0 else names[n - 1]}()" for n, name in enumerate(names)]
        exec(compile("\n".join(lines), "/app/app.py", "exec"), namespace)
        return fingerprint(namespace[names[-1]])

    assert calls("f1", "f2", "f3", "f4", "f5") == calls("f1", "f2", "f3", "f4", "g5")
    assert calls("f1", "f2", "f3", "f4", "f5") != calls("f1", "f2", "f3", "g4", "f5")
