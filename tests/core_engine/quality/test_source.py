from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from core_engine.llm.gguf_reader import default_model_path
from core_engine.quality.source import Source, source
from tests.core_engine.llm.families import hf_model
from tests.core_engine.llm.gguf_files import write_gguf


def test_the_example_model_is_a_floor_of_4_bits() -> None:
    found = source(default_model_path())
    assert found == Source(4, ("Q4_1",))
    assert found.describe() == "source is natively 4-bit (Q4_1): a floor; there is no higher precision to fall back to"


@pytest.mark.parametrize(("kind", "bits"), [(Kind.F32, 32), (Kind.Q8_0, 8)])
def test_a_source_of_more_bits_is_no_floor(kind: Kind, bits: int, tmp_path: Path) -> None:
    found = source(write_gguf(tmp_path / "model.gguf", hf_model("llama", intermediate_size=64), kind))
    assert (found, found.is_floor) == (Source(bits, (kind.name,)), False)
    assert found.describe() == f"source is {bits}-bit ({kind.name})"


def test_a_folder_is_in_floating_point(tmp_path: Path) -> None:
    assert source(tmp_path).describe() == "source is in floating point"
