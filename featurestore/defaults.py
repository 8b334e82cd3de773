"""Declared defaults, from what JSON can carry to the values that are served."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from core_engine.errors import ConfigurationError
from featurestore.definitions import FeatureType, FeatureView, Field
from featurestore.field_codec import NOT_EXACT, field_codec


def served_default(view: FeatureView, field: Field) -> Any:
    """The field's default as a stored row would give it; None where it has none.

    Raises:
        ConfigurationError: where the default does not fit the field, naming view, field, default and expectation.
    """
    if field.default is None:
        return None
    codec = field_codec(field)
    try:
        return codec.exact(_parsed(field))
    except NOT_EXACT:
        raise ConfigurationError(
            f"feature {view.name}.{field.name}: default {field.default!r} is not {codec.expected}"
            f"{_WRITTEN.get(field.type, '')}"
        ) from None


def _parsed(field: Field) -> Any:
    parse = _PARSE.get(field.type)
    if parse is None or field.default is None:
        return field.default
    if isinstance(field.default, tuple):
        return tuple(parse(value) for value in field.default)
    return parse(field.default)


def _decimal(text: Any) -> Decimal:
    if not isinstance(text, str):
        raise TypeError
    return Decimal(text)


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError
    return base64.b64decode(text, validate=True)


_PARSE: Final[Mapping[FeatureType, Callable[[Any], Any]]] = {
    FeatureType.DECIMAL: _decimal,
    FeatureType.BYTES: _bytes,
    FeatureType.TIMESTAMP: datetime.fromisoformat,
}
_WRITTEN: Final = {
    FeatureType.DECIMAL: ", written as a string",
    FeatureType.BYTES: ", written in base64",
    FeatureType.TIMESTAMP: ", written as RFC 3339 with an offset",
}
