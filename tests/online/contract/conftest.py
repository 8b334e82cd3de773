"""One door for all tests of the contract: they leave nothing behind in it, which is looked at in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core_engine.llm.tokenizer import Tokenizer
from tests.online.contract.serving import Stranger, served


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[Stranger]:
    with served(tmp_path_factory.mktemp("contract"), tokenizer) as stranger:
        yield stranger
