"""`headrace keys` and `headrace tenants`: what is printed, once, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from core_engine.errors import InvalidRequest, UnknownName
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from core_engine.tenants.keys import prefix_of
from core_engine.tenants.quotas import Quota
from core_engine.tenants.registry import TenantRegistry
from core_engine.tenants.view import TenantView
from headrace.cli import app

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path))
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], TenantView]:
    def view() -> TenantView:
        database = open_database(Settings(state_dir=tmp_path).database_url)
        try:
            return TenantRegistry(database).view()
        finally:
            database.dispose()

    return view


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_a_key_is_printed_alone_and_once(run: Run, stored: Callable[[], TenantView]) -> None:
    made = run("keys", "create", "--tenant", "acme")
    ((key,),) = rows(made)
    assert "cannot be shown again" in made.stderr
    assert stored().tenant_of(key, datetime.now(UTC)) == "acme"
    ((prefix, tenant, _, status),) = rows(run("keys", "list"))
    assert (prefix, tenant, status) == (prefix_of(key), "acme", "usable")
    assert key not in run("keys", "list").output


def test_a_key_is_revoked_by_its_prefix(run: Run, stored: Callable[[], TenantView]) -> None:
    ((key,),) = rows(run("keys", "create", "--tenant", "acme"))
    ((prefix, tenant, status),) = rows(run("keys", "revoke", str(prefix_of(key))))
    assert (prefix, tenant) == (prefix_of(key), "acme")
    assert status.startswith("revoked 20")
    assert not stored().has_usable_key(datetime.now(UTC))
    assert rows(run("keys", "list"))[0][3] == status


def test_a_key_may_expire(run: Run, stored: Callable[[], TenantView]) -> None:
    rows(run("keys", "create", "--tenant", "acme", "--expires", "2999-01-31"))
    (key,) = stored().keys.values()
    assert key.expires_at == datetime(2999, 1, 31, tzinfo=UTC)
    assert rows(run("keys", "list"))[0][3] == "expires 2999-01-31T00:00:00+00:00"


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("create", "--tenant", "a b"), InvalidRequest, "tenant = 'a b'"),
        (("create", "--tenant", "acme", "--expires", "tomorrow"), InvalidRequest, "--expires"),
        (("create", "--tenant", "acme", "--expires", "2020-01-01"), InvalidRequest, "expires"),
        (("revoke", "0123456789ab"), UnknownName, "known prefixes: none"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    run: Run, arguments: tuple[str, ...], kind: type[Exception], said: str
) -> None:
    failed = run("keys", *arguments)
    assert isinstance(failed.exception, kind)
    assert said in str(failed.exception)


def test_a_tenant_s_limits_are_set_as_a_whole_and_listed_with_the_defaults(
    run: Run, stored: Callable[[], TenantView], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(run("keys", "create", "--tenant", "globex"))
    rows(run("tenants", "set", "acme", "--requests-per-s", "2.5", "--tokens-per-minute", "6000"))
    assert stored().quotas == {"acme": Quota(2.5, 6000, None)}
    monkeypatch.setenv("HEADRACE_QUOTAS__STREAMS", "4")
    assert rows(run("tenants", "list")) == [
        ["acme", "2.5", "6000", "4", "0 keys"],
        ["globex", "no limit", "no limit", "4", "1 keys"],
    ]
    rows(run("tenants", "set", "acme", "--streams", "9"))
    assert stored().quotas == {"acme": Quota(streams=9)}


def test_a_limit_that_is_none_is_refused(run: Run) -> None:
    failed = run("tenants", "set", "acme", "--requests-per-s", "0")
    assert isinstance(failed.exception, InvalidRequest)
    assert failed.exception.field == "requests_per_s"
