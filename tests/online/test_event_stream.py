"""An event of which all but the choice was encoded beforehand is the event of the whole object."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online.event_stream import ChunkEvents, event

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
choices = st.fixed_dictionaries({"index": st.integers(0, 127), "delta": st.dictionaries(texts, texts, max_size=2)})


@pytest.mark.parametrize("closing", [{}, {"usage": None}])
@given(shared=st.dictionaries(texts, texts | st.integers(0, 2**40), min_size=1, max_size=4), choice=choices)
def test_a_chunks_event_is_that_of_the_whole_object(
    closing: dict[str, Any], shared: dict[str, Any], choice: dict[str, Any]
) -> None:
    shared = {f"_{name}": value for name, value in shared.items()}  # none of them is `choices` or `usage`
    whole = shared | {"choices": [choice]} | closing
    assert ChunkEvents(shared, closing).event(choice) == event(whole)
