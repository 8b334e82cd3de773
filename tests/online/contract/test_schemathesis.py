"""Schemathesis against the door's own document: boundary values of every field and header, then generated requests.

Each is sent to a door with a real, tiny engine, and the reply must be one that the document declares. The same requests
every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import given, settings
from schemathesis import Case, GenerationMode, checks
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.online.contract.narrowing import TEXTS, named, narrowed
from tests.online.contract.serving import Stranger

VALID, INVALID = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
ROUTES = {
    "/v1/predict/{predictor}": "POST",
    "/v1/predictions/{predictor}/{entity}": "GET",
    "/v1/models": "GET",
    "/v1/models/{model}": "GET",
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/embeddings": "POST",
    "/healthz": "GET",
    "/readyz": "GET",
    "/metrics": "GET",
}
KINDS = [(path, False, mode) for path in ROUTES for mode in (VALID, INVALID)] + [(path, True, VALID) for path in TEXTS]
LATE = ["503", "504"]  # an invalid request may have a valid deadline that nobody can keep
CHECKS = {
    "not_a_server_error": {"expected-statuses": ["2xx", "4xx", *LATE]},
    "negative_data_rejection": {"expected-statuses": ["400", "401", "403", "404", "405", "415", "422", *LATE]},
    "positive_data_acceptance": {"expected-statuses": ["2xx", "404"]},
    "ignored_auth": {"enabled": False},  # sends every case three times: once per route is enough
}
NUM_GENERATED = 15

Send = Callable[["Case[Any]"], None]


class Documents:
    """The document as schemathesis reads it, with what is valid for this door."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._invalid = _read(named(document))
        self._valid = {is_stream: _read(narrowed(document, is_stream=is_stream)) for is_stream in (False, True)}

    def of(self, mode: GenerationMode, *, is_stream: bool) -> OpenApiSchema:
        return self._valid[is_stream] if mode is VALID else self._invalid


def _read(document: dict[str, Any]) -> OpenApiSchema:
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict({"checks": CHECKS, "seed": 1}))


@pytest.fixture(scope="module")
def documents(stranger: Stranger) -> Documents:
    return Documents(stranger.document())


@pytest.fixture(scope="module")
def send(stranger: Stranger) -> Iterator[Send]:
    """Sends a case and checks the reply."""
    with requests.Session() as session:

        def send(case: Case[Any]) -> None:
            case.call_and_validate(stranger.url, session, stranger.headers)

        yield send


def test_every_route_is_in_the_document(stranger: Stranger) -> None:
    declared = {path: [method.upper() for method in methods] for path, methods in stranger.document()["paths"].items()}
    assert declared == {path: [method] for path, method in ROUTES.items()}


@pytest.mark.parametrize("path", ROUTES)
def test_a_key_is_needed_where_the_document_says_so(documents: Documents, stranger: Stranger, path: str) -> None:
    """Neither without a key nor with a wrong one is a request answered that is answered with it."""
    schema = documents.of(VALID, is_stream=False)
    operation, generation = schema[path][ROUTES[path]], schema.config.generation
    case = next(iter(schema.iter_coverage_cases(operation, generation_modes=[VALID], generation_config=generation)))
    with requests.Session() as session:
        case.call_and_validate(stranger.url, session, stranger.headers, checks=[checks.ignored_auth])


@pytest.mark.parametrize(("path", "is_stream", "mode"), KINDS)
def test_the_boundaries_of_every_field_and_header_are_kept(
    documents: Documents, send: Send, path: str, is_stream: bool, mode: GenerationMode
) -> None:
    schema = documents.of(mode, is_stream=is_stream)
    operation, generation = schema[path][ROUTES[path]], schema.config.generation
    cases = [*schema.iter_coverage_cases(operation, generation_modes=[mode], generation_config=generation)]
    assert cases
    for case in cases[:: 3 if is_stream else 1]:  # the fields were all seen without a stream
        send(case)


@pytest.mark.parametrize(("path", "is_stream", "mode"), [kind for kind in KINDS if ROUTES[kind[0]] == "POST"])
def test_whatever_is_sent_the_reply_is_a_declared_one(
    documents: Documents, send: Send, path: str, is_stream: bool, mode: GenerationMode
) -> None:
    operation = documents.of(mode, is_stream=is_stream)[path][ROUTES[path]]

    @settings(max_examples=NUM_GENERATED, derandomize=True, database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Case[Any]) -> None:
        send(case)

    check()
