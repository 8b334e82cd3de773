"""The five states of a feature value: one judgement for the online and the as-of reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from core_engine.contracts import FeatureState, FeatureValue
from featurestore.catalog import CompiledView, Feature
from featurestore.codec import ABSENT

MISSING: Final = FeatureValue(None, FeatureState.MISSING)


def all_missing(refs: Iterable[str]) -> Mapping[str, FeatureValue]:
    return dict.fromkeys(refs, MISSING)


def judge(
    compiled: CompiledView, features: Iterable[Feature], values: list[Any], event_us: int, now_us: int
) -> dict[str, FeatureValue]:
    """Each feature's value with its state, from a stored row (`values` in schema order) of a known age.

    Older than the TTL, the whole row is `stale`, what it left out included: the value is still given, with its age.
    A row from the future (a source's clock runs ahead) is present, with a negative age.
    """
    age_us = now_us - event_us
    age_s = age_us / 1e6
    is_stale = age_us > compiled.ttl_us
    judged = {}
    for feature in features:
        value = values[feature.position]
        state = FeatureState.PRESENT
        if value is ABSENT:
            value = compiled.defaults[feature.position]
            state = FeatureState.DEFAULT
        if value is None:
            state = FeatureState.NULL
        judged[feature.ref] = FeatureValue(value, FeatureState.STALE if is_stale else state, age_s)
    return judged
