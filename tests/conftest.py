"""For all tests: torch's threads must not spin against the servers that tests start beside them."""

from __future__ import annotations

from core_engine.llm.openmp import spin_briefly

spin_briefly()
