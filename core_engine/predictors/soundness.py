"""Whether a declaration hangs together: checked once, when it is registered, so that no request meets a broken one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import permutations

from core_engine.contracts import Rung
from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import (
    ColumnKind,
    InputKind,
    LMGenerate,
    LMScore,
    OnState,
    Predictor,
    TorchScorer,
)
from core_engine.predictors.prompt import prompt_fields

KEY_KINDS = (InputKind.STRING, InputKind.INT)
LOOKUP_KINDS = (*KEY_KINDS, InputKind.TIMESTAMP)
TIME_KINDS = (ColumnKind.HOUR, ColumnKind.WEEKDAY, ColumnKind.YEARDAY)


def check_declaration(predictor: Predictor) -> None:
    """Refuse a declaration whose parts do not fit together.

    Raises:
        ConfigurationError: one sentence with every fault found.
    """
    checks = (_names, _entities, _columns, _rungs, _precomputed, _prompt, _labels)
    faults = [fault for check in checks for fault in check(predictor)]
    if faults:
        raise ConfigurationError(f"predictor {predictor.id}: {'; '.join(faults)}")


def _names(p: Predictor) -> Iterable[str]:
    if not p.name or p.version < 1 or ":" in p.name or "/" in p.name:
        yield f"its name must be non-empty without ':' and '/', its version at least 1 (got {p.name!r}, {p.version})"
    groups = {
        "inputs": [field.name for field in p.inputs],
        "entities": [use.entity for use in p.entities],
        "features": [use.ref for use in p.features],
        "columns": [column.name for column in p.columns],
        "rungs": [str(rung) for rung in p.ladder],
    }
    for group, names in groups.items():
        if len(set(names)) != len(names):
            yield f"the names of its {group} must be distinct, got {names}"


def _entities(p: Predictor) -> Iterable[str]:
    fields = {field.name: field for field in p.inputs}
    for use in p.entities:
        for name in use.fields:
            field = fields.get(name)
            if field is None or field.kind not in KEY_KINDS or not field.required:
                yield f"key field {name!r} of entity {use.entity!r} must be a required input of kind string or int"
    for ref in (feature.ref for feature in p.features):  # view@entity.feature is read by that entity's key
        _, at, entity = ref.partition(".")[0].partition("@")
        if at and entity not in {use.entity for use in p.entities}:
            yield f"feature {ref!r} is read by the key of {entity!r}, which is no entity of the predictor"


def _columns(p: Predictor) -> Iterable[str]:
    sources = {field.name for field in p.inputs} | {use.ref for use in p.features}
    if isinstance(p.model, TorchScorer) and not p.columns:
        yield "a predictor that scores must declare columns"
    for name in (field.name for field in p.inputs):
        if "." in name:
            yield f"input {name!r} must not contain a dot: a source with a dot is a feature"
    for ref in (use.ref for use in p.features):
        if "." not in ref:
            yield f"feature {ref!r} must be written view.feature"
    times = {field.name for field in p.inputs if field.kind is InputKind.TIMESTAMP}
    for column in p.columns:
        if column.source not in sources:
            yield f"column {column.name!r} reads {column.source!r}, which is neither an input nor a feature"
        if column.kind in TIME_KINDS and column.source in {field.name for field in p.inputs} - times:
            yield f"column {column.name!r} of kind {column.kind} needs a timestamp, {column.source!r} is none"
        if column.kind is ColumnKind.CATEGORY and not column.values:
            yield f"category column {column.name!r} lists no values"
    for use in p.features:
        if OnState.DEFAULT in (use.on_missing, use.on_stale, use.on_null) and use.default is None:
            yield f"feature {use.ref!r} falls back to a default but declares none"


def _rungs(p: Predictor) -> Iterable[str]:
    if not p.ladder or Rung.NONE in p.ladder:
        yield "its ladder must name at least one rung, and never 'none'"
    if Rung.STUDENT in p.ladder and p.student is None:
        yield "its ladder has a student rung but no student is declared"
    if Rung.PRIOR in p.ladder and p.prior is None:
        yield "its ladder has a prior rung but no prior is declared"
    if isinstance(p.model, LMGenerate) and p.ladder != (Rung.MODEL,):
        yield "a predictor that generates text has the model rung only"
    if p.budget_ms <= 0 or p.reserve_ms < 0 or p.freshness_s < 0:
        yield f"budget_ms must be positive, reserve_ms and freshness_s not negative (budget_ms = {p.budget_ms})"
    if p.threshold is not None and (isinstance(p.model, LMGenerate) or not math.isfinite(p.threshold)):
        yield f"a threshold is a finite score of a predictor that scores (got {p.threshold})"
    if p.prior is not None:
        names = {column.name for column in p.columns}
        for name in p.prior.segment:
            if name not in names:
                yield f"prior segment {name!r} is no column"


def _precomputed(p: Predictor) -> Iterable[str]:
    if p.precomputed is None:
        if Rung.PRECOMPUTED in p.ladder:
            yield "its ladder has a precomputed rung but nothing precomputed is declared"
        return
    fields = {field.name: field for field in p.inputs}
    for name in p.precomputed.key:
        field = fields.get(name)
        if field is None or field.kind not in LOOKUP_KINDS or not field.required:
            yield f"precomputed key {name!r} must be a required input of kind string, int or timestamp"
    if not p.precomputed.key or p.precomputed.max_age_s <= 0:
        yield f"what is precomputed needs a key and a positive max_age_s (got {p.precomputed.max_age_s})"


def _prompt(p: Predictor) -> Iterable[str]:
    """A text is written from required inputs; labels may also be asked about features and what is absent."""
    match p.model:
        case LMGenerate():
            known, kind = {field.name for field in p.inputs if field.required}, "no required input"
        case LMScore():
            known = {field.name for field in p.inputs} | {use.ref for use in p.features}
            kind = "neither an input nor a feature"
        case _:
            return
    try:
        used = prompt_fields(p.model.prompt)
    except ValueError as error:
        yield f"its prompt is no format string: {error}"
        return
    for name in sorted(used - known):
        yield f"its prompt uses {name!r}, which is {kind}"
    views = {use.ref.partition(".")[0] for use in p.features}
    for name in sorted(views & {field.name for field in p.inputs} & used):
        yield f"its prompt uses {name!r}, which is an input and a feature view"


def _labels(p: Predictor) -> Iterable[str]:
    if not isinstance(p.model, LMScore):
        return
    names, texts = [label.name for label in p.model.labels], [label.text for label in p.model.labels]
    if p.label not in names:
        yield f"its label {p.label!r} must be one of those that it scores, got {names}"
    if len(texts) < 2 or len(set(names)) != len(names) or "" in texts:
        yield f"it must score two labels or more, of distinct names and non-empty texts, got {names} and {texts}"
    for one, other in permutations(texts, 2):
        if other.startswith(one):
            yield f"label text {one!r} begins {other!r}: the model could not say the one without the other"
