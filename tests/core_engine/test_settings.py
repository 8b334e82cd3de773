"""Settings: what is unknown or malformed stops start-up with key, value and expectation."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from core_engine.pools.replica import RestartReason
from core_engine.settings import load_settings


def test_sections_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HTTP__PORT", "8123")
    monkeypatch.setenv("HEADRACE_STATE_DIR", "/elsewhere")
    settings = load_settings()
    assert settings.http.port == 8123
    assert settings.spool_dir == Path("/elsewhere/spool")
    assert settings.database_url == "sqlite:////elsewhere/headrace.db"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("HEADRACE_HTTP__PORT", "abc", r"HEADRACE_HTTP__PORT = 'abc'.*integer"),
        ("HEADRACE_HTTP__PORT", "0", r"HEADRACE_HTTP__PORT = '0'.*greater than or equal to 1"),
        ("HEADRACE_HTTP__PROT", "1", r"HEADRACE_HTTP__PROT = '1'"),
        ("HEADRACE_HTTPS__PORT", "1", r"HEADRACE_HTTPS__PORT is unknown; sections are .*HEADRACE_HTTP"),
        ("HEADRACE_HTTP__WORKERS", "0", r"HEADRACE_HTTP__WORKERS = '0'.*greater than or equal to 1"),
        ("HEADRACE_PREDICT_LIMIT__TOLERANCE", "0.5", r"HEADRACE_PREDICT_LIMIT__TOLERANCE = '0.5'.*equal to 1"),
        ("HEADRACE_PREDICT_LIMIT__LEAST", "25", r"HEADRACE_PREDICT_LIMIT = .*least = 25, initial = 24, most = 512"),
        ("HEADRACE_PREDICT_LIMIT__MOST", "20", r"most = 20: expected least <= initial <= most"),
        ("HEADRACE_HTTP__WORKERS", "257", r"less than or equal to 256"),
        ("HEADRACE_ENGINE__WEIGHTS", "int3", r"HEADRACE_ENGINE__WEIGHTS = 'int3'.*bfloat16"),
        ("HEADRACE_ENGINE__INTERACTIVE", "{not json", r"engine"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, key: str, value: str, says: str) -> None:
    monkeypatch.setenv(key, value)
    with pytest.raises(ConfigurationError, match=says):
        load_settings()


@pytest.mark.parametrize("limit", ["MAX_STREAMS", "MAX_CONNECTIONS"])
def test_every_worker_has_at_least_one_of_what_is_shared_out(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setenv("HEADRACE_HTTP__WORKERS", "4")
    monkeypatch.setenv(f"HEADRACE_HTTP__{limit}", "4")
    assert load_settings().http.workers == 4
    monkeypatch.setenv(f"HEADRACE_HTTP__{limit}", "3")
    with pytest.raises(
        ConfigurationError, match=f"HEADRACE_HTTP = .*{limit.lower()} = 3: expected at least workers = 4"
    ):
        load_settings()


def test_the_tests_own_variables_are_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_REDIS", "redis://somewhere")
    load_settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().http.port = 1  # type: ignore[misc]


def test_an_engine_is_told_its_restarts_by_every_reason_that_a_supervisor_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, reason in enumerate(RestartReason):
        monkeypatch.setenv(f"HEADRACE_ENGINE__RESTARTS__{reason.upper()}", str(number))
    told = load_settings().engine.restarts.model_dump()
    assert told == {str(reason): number for number, reason in enumerate(RestartReason)}
