"""For all tests: torch's threads must not spin against the servers that tests start, and no test is judged by time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from core_engine.llm.openmp import spin_briefly

spin_briefly()
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=25)  # `make check`
settings.load_profile("quick" if "HEADRACE_TEST_QUICK" in os.environ else "untimed")
