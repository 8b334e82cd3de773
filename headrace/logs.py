"""Logging of a process that serves: one JSON object a line on stderr, from structlog and the standard library."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec
import structlog


def configure_logging(level: str) -> None:
    """Called once, by a composition root. Lines below `level` cost next to nothing."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.processors.JSONRenderer(serializer=_to_json)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(level=threshold, handlers=[handler], force=True)


def _to_json(event: dict[str, Any], **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
