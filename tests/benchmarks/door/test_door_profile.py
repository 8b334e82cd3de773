"""A sample belongs to the innermost frame that lies in a part; what had no frame is the loop's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from benchmarks.door.door_profile import LOOP, PARTS, part_of

Call = Callable[..., Any]


def lying_in(path: str) -> Call:
    """A function of a file, which calls what it is given."""
    names: dict[str, Any] = {}
    exec(compile("def call(inner):\n    return inner()\n", path, "exec"), names)  # noqa: S102
    made: Call = names["call"]
    return made


def here() -> str:
    frame: FrameType | None = sys._getframe()
    return part_of(frame)


@pytest.mark.parametrize(("place", "part"), PARTS.items())
def test_a_frame_of_a_file_is_in_its_part_and_so_is_what_it_calls(place: str, part: str) -> None:
    path = f"/site/{place}x.py" if place.endswith("/") else f"/site/{place}"
    standard = lying_in("/lib/python/asyncio/queues.py")
    assert lying_in(path)(here) == part
    assert lying_in(path)(lambda: standard(here)) == part


def test_the_innermost_part_counts() -> None:
    outer, inner = lying_in("/site/starlette/responses.py"), lying_in("/site/core_engine/llm/text.py")
    assert outer(lambda: inner(here)) == PARTS["core_engine/llm/text.py"]


def test_frames_of_no_part_are_the_loops() -> None:
    assert lying_in("/site/uvicorn/server.py")(here) == LOOP


def test_a_frame_that_the_loop_has_just_called_has_used_nothing_yet() -> None:
    def at_its_beginning() -> list[str]:
        found: list[str] = []

        def trace(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename == path:
                found.append(part_of(frame))

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call(int)
        finally:
            sys.settrace(before)
        return found

    path = "/site/starlette/responses.py"
    call = lying_in(path)
    assert at_its_beginning() == [LOOP]
    assert lying_in("/site/fastapi/routing.py")(at_its_beginning) == [PARTS["starlette/"]]
