"""Comparing a driver's answer with the reference's: what was promised of it, and where it differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from msgspec import Struct

from taskharbor.drivers.base import Claim, SettleAnswer, SettleResult, Transition


def differences(expected: object, answer: object, path: str = "answer") -> Iterator[str]:
    """Where two answers differ, one line for each leaf: a whole dump of two stores helps no reader."""
    if type(expected) is not type(answer):
        yield f"  {path}: {answer!r} instead of {expected!r}"
    elif isinstance(expected, Struct):
        for name in expected.__struct_fields__:
            yield from differences(getattr(expected, name), getattr(answer, name), f"{path}.{name}")
    elif isinstance(expected, dict) and isinstance(answer, dict) and expected.keys() == answer.keys():
        for key in expected:
            yield from differences(expected[key], answer[key], f"{path}[{key!r}]")
    elif isinstance(expected, list) and isinstance(answer, list) and len(expected) == len(answer):
        for index, pair in enumerate(zip(expected, answer, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif expected != answer:
        yield f"  {path}: {answer!r} instead of {expected!r}"


def whole(answer: object) -> object:
    return answer


def repeated_claim_promised(claim: Claim) -> tuple[object, ...]:
    """The same jobs under the same lease; nothing of what else there is to claim."""
    return (claim.now, claim.expires_at, claim.jobs)


def settled_promised(
    batch: Sequence[Transition], rows: Set[tuple[str, int]], answers: Sequence[SettleResult]
) -> list[tuple[object, ...]]:
    """Of a settle that is repeated, that it is done; of a refused one, why. `rows` were there before."""
    over = set(rows)
    promised: list[tuple[object, ...]] = []
    for each, settled in zip(batch, answers, strict=True):
        attempt = (each.job_id, each.number)
        if settled.answer is not SettleAnswer.DONE:
            promised.append((settled.answer, settled.recorded))
        elif attempt in over:
            promised.append((settled.answer,))
        else:
            dependants = (settled.released, settled.cancelled)
            promised.append((settled.answer, settled.state, settled.run_at, *dependants, settled.at))
            over.add(attempt)
    return promised
