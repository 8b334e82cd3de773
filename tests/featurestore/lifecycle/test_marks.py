"""The store's own word of how far it is: kept with the rows, gone with them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis

from featurestore.codec import UnreadablePayload
from featurestore.keys import marks_key
from featurestore.lifecycle.marks import Held, Marks
from featurestore.lifecycle.watermarks import Cursor
from tests.featurestore.rows import make_view

AT = datetime(2026, 11, 30, 12, 0, 0, 123_456, UTC)


async def test_marks_come_back_as_they_were_said(client: Redis) -> None:
    view, marks = make_view(), Marks(client)
    assert await marks.read(view) == Held()
    await marks.save(view, "a", 0, Cursor(-5, 0))
    await marks.save(view, "a", 0, Cursor(2**62, 7))
    await marks.save(view, "b", 12, Cursor(1, 2))
    assert await marks.read(view) == Held(None, {("a", 0): Cursor(2**62, 7), ("b", 12): Cursor(1, 2)})
    await marks.drop(view, "b", 13)
    assert await marks.read(view) == Held(None, {("a", 0): Cursor(2**62, 7)})
    await marks.finish(view, AT)
    assert await marks.read(view) == Held(AT)
    assert await client.ttl(marks_key(view)) == -1, "it is never evicted for its age"
    await client.unlink(marks_key(view))


async def test_versions_have_marks_of_their_own(client: Redis) -> None:
    first, marks = make_view(), Marks(client)
    second = make_view(name=first.name, version=11)
    await marks.finish(first, AT)
    assert await marks.read(second) == Held()
    await client.unlink(marks_key(first))


@pytest.mark.parametrize("fields", [{"watermark": "soon"}, {"a": "1/2"}, {"a/0": "1"}, {"a/x": "1/2"}])
async def test_a_hash_of_somebody_else_is_told_by_name(client: Redis, fields: dict[str, str]) -> None:
    view = make_view()
    for name, value in fields.items():
        await client.hset(marks_key(view), name, value)
    with pytest.raises(UnreadablePayload, match=f"hr:{view.name}:1:marks.* was not written by this store; delete it"):
        await Marks(client).read(view)
    await client.unlink(marks_key(view))
