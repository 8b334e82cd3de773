from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.codec import INT64_MAX, INT64_MIN
from featurestore.instants import to_us
from featurestore.online.newest_wins import FUNCTION, LIBRARY, pack_event_time, pack_sequence, unpack_event_time
from tests.featurestore.rows import PROPERTY, unique

INT64 = st.integers(INT64_MIN, INT64_MAX)
YEAR_9999_MS = to_us(datetime(9999, 1, 1, tzinfo=UTC), "end") // 1000


@PROPERTY
@given(INT64)
def test_event_times_come_back(event_us: int) -> None:
    assert unpack_event_time(pack_event_time(event_us)) == event_us


@PROPERTY
@given(st.tuples(INT64, INT64), st.tuples(INT64, INT64))
def test_the_order_of_the_bytes_is_the_order_of_the_numbers(left: tuple[int, int], right: tuple[int, int]) -> None:
    assert (pack_event_time(left[0]) < pack_event_time(right[0])) == (left[0] < right[0])
    assert (pack_sequence(*left) < pack_sequence(*right)) == (left < right)


def test_anything_but_eight_bytes_is_no_event_time() -> None:
    with pytest.raises(struct.error):
        unpack_event_time(b"1750000000000000")


@pytest.mark.parametrize(
    ("first", "second", "is_written"),
    [
        ((2**53, 0, 0), (2**53 + 1, 0, 0), True),  # equal as doubles
        ((2**53 + 1, 0, 0), (2**53, 0, 0), False),
        ((INT64_MAX - 1, 0, 0), (INT64_MAX, 0, 0), True),
        ((INT64_MIN, 0, 0), (INT64_MIN + 1, 0, 0), True),
        ((-1, 0, 0), (0, 0, 0), True),  # the sign bit
        ((0, 0, 0), (-1, 0, 0), False),
        ((127, 0, 0), (128, 0, 0), True),  # bytes over 0x7f, which a locale may sort elsewhere
        ((0, 2**53, 0), (0, 2**53 + 1, 0), True),
        ((0, 0, 2**53), (0, 0, 2**53 + 1), True),
        ((0, 0, INT64_MAX), (0, 1, 0), True),  # created time before offset
        ((0, INT64_MAX, INT64_MAX), (1, INT64_MIN, 0), True),  # event time before both
        ((5, 6, 7), (5, 6, 7), False),  # a tie keeps what is there
    ],
)
async def test_the_server_compares_sixty_four_bits_exactly(
    client: Any, first: tuple[int, int, int], second: tuple[int, int, int], is_written: bool
) -> None:
    await client.execute_command("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    key = unique("compare")
    for written, (event_us, created_us, offset) in ((True, first), (is_written, second)):
        arguments = (pack_event_time(event_us), pack_sequence(created_us, offset), b"p", YEAR_9999_MS)
        assert await client.execute_command("FCALL", FUNCTION, 1, key, *arguments) == written
    await client.delete(key)


async def test_what_is_no_row_of_ours_is_replaced(client: Any) -> None:
    await client.execute_command("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    key = unique("foreign")
    await client.execute_command("HSET", key, "t", b"", "s", b"")
    arguments = (pack_event_time(INT64_MIN), pack_sequence(0, 0), b"p", YEAR_9999_MS)
    assert await client.execute_command("FCALL", FUNCTION, 1, key, *arguments) == 1
    await client.delete(key)
