"""Fingerprints: which failures have the same cause, as 16 hexadecimal digits.

An error's fingerprint is the SHA-256 over the version of this rule, the error's type, the first line of its message
without what varies from job to job, the innermost functions of the application, and the type of its root cause. Every
step takes time that grows with the length of what it reads, and reads only so much: an error's text may be hostile.
"""

from __future__ import annotations

import re
import sysconfig
from collections import deque
from functools import lru_cache
from hashlib import sha256
from os import path, sep
from types import CodeType, FrameType, TracebackType
from typing import Literal

from taskharbor.function_refs import MAIN_NAMES
from taskharbor.records import Reason

RULE = "1"  # raised when the rule changes: old and new fingerprints never meet
FINGERPRINT_LENGTH = 16
ERROR_SHOWN = 200  # characters of an error that stand with a dead job
FRAMES_MAX = 5
MESSAGE_READ_MAX = (
    2_000  # characters of a message that are looked at: ids and paths are longer than what replaces them
)
MESSAGE_MAX = 200  # characters that are left of it and count
PATTERNS_MAX = 512  # lines of messages whose patterns are remembered
KNOWN_MAX = 4_096  # functions, words and fingerprints that are remembered
CAUSES_MAX = 100  # links of a chain of causes that are followed
CAUSE = "taskharbor_cause"  # an attribute of TaskHarbor's own errors that know their cause better than their text does

_MAIN = dict.fromkeys(MAIN_NAMES, "__main__")  # a script's module has another name in a handler process

Place = Literal["application", "library", "other"]


def of_kind(task: str, kind: str | Reason | None) -> str:
    """Return the fingerprint of what no code of the handler's explains: a loss, a timeout, an unfit job.

    PostgreSQL has the same rule as a function, `kind_fingerprint`, for rows that a claim sets aside.
    """
    return digest("kind", task, str(kind))


def of_error(error: BaseException, text: str) -> str:
    """Return the fingerprint of an error that a handler raised, whose text is this.

    Its own code may do anything when it is asked: then its type is all that counts.
    """
    try:
        if (cause := cause_of(error)) is not None:
            return digest("http", *cause)
        frames = application_frames(error.__traceback__)
        return digest(
            "error", _name_of(error), message_pattern(text), *frames, "root", _name_of(_root_of(error))
        )
    except BaseException:  # noqa: BLE001 - a property of the error, or the name of its type, may raise anything
        return digest("error", "unreadable")


def cause_of(error: BaseException) -> tuple[str, ...] | None:
    """Return what an error of TaskHarbor's own knows of its cause: of an HTTP job, the host and what it answered."""
    is_ours = type(error).__module__.startswith("taskharbor.")
    return vars(error).get(CAUSE) if is_ours else None


@lru_cache(maxsize=KNOWN_MAX)
def digest(*parts: str) -> str:
    """Return the first digits of the SHA-256 over the rule's version and these parts."""
    text = "\n".join((RULE, *parts))
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:FINGERPRINT_LENGTH]


# -- the message ---------------------------------------------------------------------------------

# Quoted text. An apostrophe within a word is none. Each opening mark looks no further than to the next one of its kind.
# (The mark comes first and what it opens after it: the search skips to the next mark.)
_QUOTED = re.compile(
    r"[\"'`“«](?:(?<=\")[^\"]*\"|(?<=')(?<!\w')[^']*'(?!\w)|(?<=`)[^`]*`|(?<=“)[^”]*”|(?<=«)[^»]*»)"
)
_BRACKET = re.compile(r"[()\[\]{}<>|]")
ID_LENGTH = 8  # shorter ones are words
_NUMBER = re.compile(r"\d\w*")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F-]{8,}")
_VARYING = re.compile(r"[\d/\\@…]")
_PUNCTUATION = ",;:.!?"
_VARIES = "…"
_CHANGE = re.compile("[a-z][A-Z]")
_INNER_CAPITALS = re.compile("[a-z][A-Z][A-Z]")
RANDOM_LENGTH, RANDOM_CHANGES = 12, 4  # letters of a random word, and changes from small to large ones


def message_pattern(text: str) -> str:
    """Return the first line of a message, with its ids, numbers, times, addresses, paths and quotations replaced.

    Several in a row are replaced as one: a list of three ids is like a list of two.
    """
    line = text[:MESSAGE_READ_MAX].lstrip().partition("\n")[0]
    return _pattern_of(_NUMBER.sub("0", line))


@lru_cache(maxsize=PATTERNS_MAX)
def _pattern_of(line: str) -> str:
    """Return the pattern of a line in which every number is 0: most failures of one cause have the same line then.

    A word with a digit in it is replaced, whatever the digit is and whatever follows, so no pattern changes by that.
    """
    line = _BRACKET.sub(" ", _QUOTED.sub(_VARIES, line))
    words: list[str] = []
    for word in line.split():
        if word.isalpha():  # most words are, and the same ones come again and again
            varies = len(word) >= ID_LENGTH and _are_id(word)
        else:
            varies = _varies(word.strip(_PUNCTUATION))
        if not varies:
            words.append(word)
        elif (name := word.partition("=")[0]) != word and not _varies(name):  # of `timeout=30` the name stays
            words.append(f"{name}=")
        elif not words or words[-1] != _VARIES:
            words.append(_VARIES)
    return " ".join(words)[:MESSAGE_MAX]


def _varies(word: str) -> bool:
    if _VARYING.search(word) is not None or not word:
        return True
    return len(word) >= ID_LENGTH and _are_id(word)


@lru_cache(maxsize=KNOWN_MAX)
def _are_id(word: str) -> bool:
    """Whether these letters are more likely an id than a word."""
    return _HEXADECIMAL.fullmatch(word) is not None or _is_random(word)


def _is_random(word: str) -> bool:
    """Whether large and small letters alternate as in no word and in few names: an id that has no digit by chance."""
    if len(word) < RANDOM_LENGTH or word.islower() or word.isupper():
        return False
    return len(_CHANGE.findall(word)) + len(_INNER_CAPITALS.findall(word)) >= RANDOM_CHANGES


# -- the frames ----------------------------------------------------------------------------------

_OURS = path.dirname(path.dirname(path.abspath(__file__))) + sep
_STANDARD = tuple({sysconfig.get_path(name) + sep for name in ("stdlib", "platstdlib")})
_PACKAGE_FOLDERS = (f"{sep}site-packages{sep}", f"{sep}dist-packages{sep}")


def application_frames(trace: TracebackType | None) -> list[str]:
    """Return the innermost functions of the application, outermost first, each as its module and its name.

    Neither the standard library nor TaskHarbor is the application; nor is an installed package, unless no other frame
    is left. A function that calls itself counts once.
    """
    application: deque[str] = deque(maxlen=FRAMES_MAX)
    library: deque[str] = deque(maxlen=FRAMES_MAX)
    while trace is not None:
        frame = trace.tb_frame
        place, function, _ = _known.get(id(frame.f_code)) or _look_at(frame)
        if place != "other":
            found = application if place == "application" else library
            if not found or found[-1] != function:
                found.append(function)
        trace = trace.tb_next
    return list(application or library)


# A failing worker meets the same functions again and again. Code objects of different modules may be equal, so each is
# known by its identity, and is kept so that no other one can have it.
_known: dict[int, tuple[Place, str, CodeType]] = {}


def _look_at(frame: FrameType) -> tuple[Place, str, CodeType]:
    module = _MAIN.get(name := str(frame.f_globals.get("__name__")), name)
    code = frame.f_code
    found = _place_of(code.co_filename), f"{module}:{code.co_qualname}", code
    if len(_known) >= KNOWN_MAX:  # code that is made anew for each job
        _known.clear()
    _known[id(code)] = found
    return found


@lru_cache(maxsize=4_096)
def _place_of(filename: str) -> Place:
    if filename.startswith((_OURS, "<frozen ")):
        return "other"
    if any(folder in filename for folder in _PACKAGE_FOLDERS):
        return "library"
    return "other" if filename.startswith(_STANDARD) else "application"


# -- the cause -----------------------------------------------------------------------------------


def _root_of(error: BaseException) -> BaseException:
    """Follow what the error was raised from, or while handling, and the first error of a group, to the end."""
    cause = _cause_in(error)
    if cause is None:
        return error
    seen = {id(error)}
    for _ in range(CAUSES_MAX):
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        error = cause
        cause = _cause_in(error)
    return error


def _cause_in(error: BaseException) -> BaseException | None:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None and isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return cause


def _name_of(error: BaseException) -> str:
    module = type(error).__module__
    return f"{_MAIN.get(module, module)}.{type(error).__qualname__}"
