"""Instants on the way to the server and back: `timestamptz` there, integers here, exact on both sides.

`timestamptz` counts microseconds too, from another epoch. A column of that type is readable in psql and
compares with the server's clock as it is; asyncpg's tuple format hands its integer over without a detour
through datetime, for a tenth of a microsecond each.
"""

from __future__ import annotations

import struct

import asyncpg

# From 1970-01-01, where ours begin, to 2000-01-01, where PostgreSQL's do.
EPOCH_MICROS = 946_684_800 * 1_000_000


def _encode(instant: int) -> tuple[int]:
    return (instant - EPOCH_MICROS,)


def _decode(instant: tuple[int]) -> int:
    return instant[0] + EPOCH_MICROS


# An array as the server sends it: dimensions, flags, type, length, first index; then each element with its size.
_ARRAY_HEADER_BYTES = 20
_ELEMENTS = struct.Struct(">iq")


def of_array(sent: bytes) -> list[int]:
    """Read `array_send` of an array of instants without NULLs: a call for each element would cost more."""
    return [instant + EPOCH_MICROS for _, instant in _ELEMENTS.iter_unpack(sent[_ARRAY_HEADER_BYTES:])]


async def install(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", format="tuple", encoder=_encode, decoder=_decode
    )
