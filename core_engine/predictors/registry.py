"""The registry: immutable predictor versions, the aliases that point at them and every move of these, in SQL.

Command line, local stack and engine call it directly; the doors read it through `catalogue`, which never makes a
request wait for SQL. It knows what is declared, not what is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

import msgspec
from sqlalchemy import Engine, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core_engine.errors import ConfigurationError, InvalidRequest, UnknownName
from core_engine.predictors.alias_history import AliasMove, Cause
from core_engine.predictors.declaration import Predictor
from core_engine.predictors.soundness import check_declaration
from core_engine.predictors.tables import PredictorAlias, PredictorAliasMove, PredictorVersion

LIVE = "live"
CANARY = "canary"  # answers a share of the entities that ask for live
SHADOW = "shadow"  # scores what live has answered, and answers nobody

VersionKey = tuple[str, int]
AliasKey = tuple[str, str]


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class RegistryView:
    """Everything registered, at one instant. `percents` has the share of each predictor's canary, by its name."""

    versions: Mapping[VersionKey, Predictor] = field(default_factory=lambda: MappingProxyType({}))
    aliases: Mapping[AliasKey, int] = field(default_factory=lambda: MappingProxyType({}))
    percents: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    def names(self) -> list[str]:
        return sorted({name for name, _ in self.versions})

    def require(self, name: str) -> None:
        """Raises `UnknownName`, with the known ones, where no version of `name` is registered."""
        if name not in self.names():
            raise _unknown("predictor", name, self.names())

    def live(self) -> list[Predictor]:
        """Every version that some alias points at, by name and version."""
        keys = {(name, version) for (name, _), version in self.aliases.items()}
        return [self.versions[key] for key in sorted(keys)]

    def resolve(self, name: str, *, alias: str = LIVE, version: int | None = None) -> Predictor:
        """The version asked for, or the one that `alias` points at.

        Raises:
            UnknownName: the message and `expected` list what is known.
        """
        self.require(name)
        if version is None:
            known = sorted(alias for owner, alias in self.aliases if owner == name)
            if (name, alias) not in self.aliases:
                raise _unknown("alias", alias, known, of=name)
            version = self.aliases[name, alias]
        if (name, version) not in self.versions:
            raise _unknown("version", version, sorted(v for owner, v in self.versions if owner == name), of=name)
        return self.versions[name, version]


def _unknown(kind: str, value: object, known: list[str] | list[int], of: str = "") -> UnknownName:
    listed = ", ".join(map(str, known)) or "none"
    subject = f"{kind} {value!r} of predictor {of!r}" if of else f"{kind} {value!r}"
    return UnknownName(f"{subject} is unknown; known: {listed}", field=kind, value=value, expected=f"one of: {listed}")


class Registry:
    """Reads and writes the registry's tables. Synchronous; safe to use from several threads and processes."""

    def __init__(self, engine: Engine, now: Callable[[], datetime] = _utc_now) -> None:
        self._engine = engine
        self._now = now

    def register(self, predictor: Predictor) -> None:
        """Store a version. The same declaration again is a no-op.

        Raises:
            ConfigurationError: the declaration does not hang together, or this version exists with another one.
        """
        check_declaration(predictor)
        row = PredictorVersion(
            name=predictor.name,
            version=predictor.version,
            fingerprint=predictor.fingerprint,
            declaration=predictor.to_json().decode(),
            created_at=self._now(),
        )
        try:
            with Session(self._engine) as session, session.begin():
                session.add(row)
        except IntegrityError:  # it is there already, perhaps by another process this very moment
            self._require_same(predictor)

    def _require_same(self, predictor: Predictor) -> None:
        with Session(self._engine) as session:
            stored = session.get_one(PredictorVersion, (predictor.name, predictor.version))
        # Compared as declarations, not by the stored fingerprint: a later release may add a field with a default.
        if _decode(stored.declaration, predictor.id) != predictor:
            raise ConfigurationError(
                f"predictor {predictor.id} is registered with another declaration (fingerprint "
                f"{stored.fingerprint[:12]}, now {predictor.fingerprint[:12]}); versions are immutable: "
                "register the change as a new version"
            )

    def set_alias(
        self, name: str, alias: str, version: int, *, percent: float | None = None, cause: Cause = Cause.SET
    ) -> None:
        """Point `alias` at a registered version; a canary at `percent` (0 to 100) of the entities. Again, a no-op.

        Raises:
            UnknownName: no such predictor or version. InvalidRequest: a percentage that cannot be, or that is no use.
        """
        self.view().resolve(name, version=version)
        _check_percent(alias, percent)
        try:
            self._point(name, alias, version, percent, cause)
        except IntegrityError:  # another process made the alias between our look and our insert
            self._point(name, alias, version, percent, cause)

    def _point(self, name: str, alias: str, version: int, percent: float | None, cause: Cause) -> None:
        now = self._now()
        with Session(self._engine) as session, session.begin():
            held = session.get(PredictorAlias, (name, alias))
            if held is not None and (held.version, held.percent) == (version, percent):
                return
            session.merge(PredictorAlias(predictor=name, alias=alias, version=version, percent=percent, updated_at=now))
            session.flush()  # whoever holds the alias's row writes the next line of its history
            session.add(_move(name, AliasMove(alias, version, percent, cause, now)))

    def remove_alias(self, name: str, alias: str) -> None:
        """Take an alias away.

        Raises:
            UnknownName: no such predictor, or no such alias of it.
        """
        self.view().resolve(name, alias=alias)
        with Session(self._engine) as session, session.begin():
            session.execute(
                delete(PredictorAlias).where(PredictorAlias.predictor == name, PredictorAlias.alias == alias)
            )
            session.add(_move(name, AliasMove(alias, None, None, Cause.REMOVED, self._now())))

    def moves(self, name: str, alias: str | None = None) -> list[AliasMove]:
        """Every move of the predictor's aliases, or of one of them, oldest first."""
        rows = select(PredictorAliasMove).where(PredictorAliasMove.predictor == name).order_by(PredictorAliasMove.id)
        if alias is not None:
            rows = rows.where(PredictorAliasMove.alias == alias)
        with Session(self._engine) as session:
            return [
                AliasMove(row.alias, row.version, row.percent, Cause(row.cause), row.moved_at)
                for row in session.scalars(rows)
            ]

    def resolve(self, name: str, *, alias: str = LIVE, version: int | None = None) -> Predictor:
        """See `RegistryView.resolve`."""
        return self.view().resolve(name, alias=alias, version=version)

    def predictors(self) -> list[Predictor]:
        """Every registered version, by name and version."""
        view = self.view()
        return [view.versions[key] for key in sorted(view.versions)]

    def view(self, known: RegistryView | None = None) -> RegistryView:
        """What the tables hold now. Versions in `known` are not read again: they never change."""
        decoded = known.versions if known else {}
        with Session(self._engine) as session:
            rows = session.scalars(select(PredictorAlias)).all()  # first: versions only come, so theirs will be there
            keys = [
                (r.name, r.version) for r in session.execute(select(PredictorVersion.name, PredictorVersion.version))
            ]
            versions = {key: decoded[key] if key in decoded else self._load(session, key) for key in keys}
        aliases = {(row.predictor, row.alias): row.version for row in rows}
        percents = {row.predictor: row.percent for row in rows if row.alias == CANARY and row.percent is not None}
        return RegistryView(MappingProxyType(versions), MappingProxyType(aliases), MappingProxyType(percents))

    def _load(self, session: Session, key: VersionKey) -> Predictor:
        return _decode(session.get_one(PredictorVersion, key).declaration, f"{key[0]}:{key[1]}")


def _decode(declaration: str, predictor_id: str) -> Predictor:
    try:
        return msgspec.json.decode(declaration, type=Predictor)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"predictor {predictor_id} in the registry cannot be read: {error}") from None


def _move(name: str, move: AliasMove) -> PredictorAliasMove:
    return PredictorAliasMove(
        predictor=name,
        alias=move.alias,
        version=move.version,
        percent=move.percent,
        cause=move.cause.value,
        moved_at=move.moved_at,
    )


def _check_percent(alias: str, percent: float | None) -> None:
    if alias == CANARY and (percent is None or not 0 <= percent <= 100):
        raise InvalidRequest(
            f"a canary's percent is {percent}, expected its share of the entities, 0 to 100",
            field="percent",
            value=percent,
            expected="0 to 100",
        )
    if alias != CANARY and percent is not None:
        raise InvalidRequest(
            f"percent is {percent}, but alias {alias!r} takes no share; expected none, or the alias {CANARY!r}",
            field="percent",
            value=percent,
            expected="none",
        )
