"""Keys and quotas on the wire: statuses, shapes and headers of refusals, and whom a request is counted for."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from core_engine.errors import EngineRefused
from core_engine.tenants.keys import new_key, prefix_of
from core_engine.tenants.quotas import Quota
from tests.online.access.conftest import CHAT, PREDICT, Guard

# -- keys


async def test_without_a_key_a_request_is_a_401_in_the_route_s_shape(guard: Guard) -> None:
    async with guard() as door:
        ours, theirs = await door.predict(), await door.chat()
        assert (ours.status_code, theirs.status_code) == (401, 401)
        assert ours.headers["content-type"] == "application/problem+json"
        assert ours.json()["type"] == "urn:headrace:problem:invalid_api_key"
        error = theirs.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
        assert ours.headers["www-authenticate"] == theirs.headers["www-authenticate"] == 'Bearer realm="headrace"'
        assert door.count("", "invalid_api_key") == 2
        assert not door.door.engine.score_requests
        assert not door.door.engine.generate_requests


async def test_a_wrong_key_is_401_and_a_revoked_one_403_from_the_next_look_on(guard: Guard) -> None:
    async with guard() as door:
        wrong = await door.predict({"X-Api-Key": new_key().key})
        assert wrong.status_code == 401

        headers = await door.key("acme")
        assert (await door.predict(headers)).status_code == 200
        door.registry.revoke_key(str(prefix_of(headers["Authorization"].removeprefix("Bearer "))))
        await door.directory.refresh()
        ours, theirs = await door.predict(headers), await door.chat(headers)
        assert (ours.status_code, theirs.status_code) == (403, 403)
        assert ours.json()["type"] == "urn:headrace:problem:forbidden"
        assert "was revoked" in theirs.json()["error"]["message"]
        assert door.count("acme", "allowed") == 1
        assert door.count("", "forbidden") == 2


async def test_an_unknown_route_says_nothing_without_a_key(guard: Guard) -> None:
    async with guard() as door:
        assert (await door.http.get("/nothing")).status_code == 401
        assert (await door.http.get("/openapi.json")).status_code == 401
        assert (await door.http.get("/nothing", headers=await door.key())).status_code == 404


async def test_probes_need_no_key_and_metrics_need_the_operator_s(guard: Guard) -> None:
    async with guard() as door:
        for path in ("/healthz", "/readyz"):
            assert (await door.http.get(path)).status_code == 200
        assert (await door.http.get("/metrics")).status_code == 401
        assert (await door.http.get("/metrics", headers=await door.key("acme"))).status_code == 403
        page = await door.http.get("/metrics", headers=await door.key("operator"))
        assert page.status_code == 200
        assert 'headrace_access_total{outcome="invalid_api_key",tenant=""}' in page.text


async def test_where_none_is_needed_probes_metrics_and_routes_are_open(guard: Guard) -> None:
    async with guard(needs_key=False) as door:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await door.http.get(path)).status_code == 200
        assert (await door.predict()).status_code == 200
        assert (await door.chat({"Authorization": "Bearer none"})).status_code == 200
        assert door.count("local", "allowed") == 3  # the metrics page among them


# -- whose request it is


async def test_the_tenant_goes_into_engine_ledger_and_log(guard: Guard) -> None:
    async with guard() as door:
        headers = await door.key("acme")
        with capture_logs() as logs:
            await door.predict(headers)
            await door.chat(headers)
        assert [line["tenant"] for line in logs if line["event"] == "request"] == ["acme", "acme"]
        assert door.door.engine.score_requests[-1].tenant == "acme"
        assert door.door.engine.generate_requests[-1].tenant == "acme"
        assert [fact.tenant for fact in door.door.facts()] == ["acme", "acme"]


async def test_a_key_never_comes_back_and_is_never_logged(guard: Guard) -> None:
    async with guard() as door:
        sent = [new_key().key, f"sk-live-{'Zq' * 20}", (await door.key())["Authorization"].removeprefix("Bearer ")]
        door.registry.revoke_key(str(prefix_of(sent[-1])))
        await door.directory.refresh()
        with capture_logs() as logs:
            replies = [
                await call({"Authorization": f"Bearer {key}"}) for key in sent for call in (door.predict, door.chat)
            ]
        told = json.dumps(logs, default=repr) + "".join(reply.text + repr(reply.headers) for reply in replies)
        assert not any(key in told or key[16:] in told for key in sent)


# -- quotas


async def test_over_its_rate_a_tenant_is_a_429_that_says_when_to_come_back(guard: Guard) -> None:
    async with guard(default=Quota(requests_per_s=0.25)) as door:
        acme, globex = await door.key("acme"), await door.key("globex")
        assert (await door.predict(acme)).status_code == 200
        ours, theirs = await door.predict(acme), await door.chat(acme)
        assert (ours.status_code, theirs.status_code) == (429, 429)
        assert ours.headers["retry-after"] == theirs.headers["retry-after"] == "4"
        assert ours.json()["type"] == "urn:headrace:problem:rate_limit_exceeded"
        error = theirs.json()["error"]
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        assert "0.25 requests per second" in error["message"]
        assert (await door.predict(globex)).status_code == 200
        assert door.count("acme", "requests") == 2

        door.clock.now_s += 3.9
        assert (await door.predict(acme)).headers["retry-after"] == "1"
        door.clock.now_s += 0.1
        assert (await door.predict(acme)).status_code == 200


async def test_a_quota_set_in_the_database_holds_at_the_next_look(guard: Guard) -> None:
    async with guard() as door:
        headers = await door.key("acme")
        door.registry.set_quota("acme", Quota(requests_per_s=1.0))
        await door.directory.refresh()
        assert [(await door.predict(headers)).status_code for _ in range(3)] == [200, 429, 429]


async def test_probes_and_metrics_pages_do_not_count(guard: Guard) -> None:
    async with guard(needs_key=False, default=Quota(requests_per_s=1.0)) as door:
        for path in ("/healthz", "/readyz", "/metrics") * 3:
            assert (await door.http.get(path)).status_code == 200
        assert (await door.predict()).status_code == 200


async def test_over_its_tokens_a_generation_is_refused_before_it_begins(guard: Guard) -> None:
    """A prompt of a few dozen tokens and 64 to come, of 120 a minute."""
    async with guard(default=Quota(tokens_per_minute=120)) as door:
        headers = await door.key("acme")
        assert (await door.chat(headers, max_tokens=64)).status_code == 200
        used = door.door.engine.generate_requests[-1]
        refused = await door.chat(headers, max_tokens=400)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "tokens"
        assert int(refused.headers["retry-after"]) >= 1
        assert len(door.door.engine.generate_requests) == 1
        assert door.count("acme", "tokens") == 1

        reserved = len(used.prompt_token_ids) + 64
        taken = len(used.prompt_token_ids) + len(door.door.engine.tokens)
        assert taken < reserved
        door.clock.now_s += int(refused.headers["retry-after"])
        assert (await door.chat(headers, max_tokens=64)).status_code == 200


async def test_what_the_engine_refuses_takes_no_tokens(guard: Guard) -> None:
    async with guard(default=Quota(tokens_per_minute=120)) as door:
        headers = await door.key("acme")
        door.door.engine.error = EngineRefused("its queue is full")
        assert [(await door.chat(headers, max_tokens=64)).status_code for _ in range(5)] == [503] * 5
        door.door.engine.error = None
        assert (await door.chat(headers, max_tokens=64)).status_code == 200


async def test_streams_over_a_tenant_s_own_limit_are_refused_and_one_that_ends_makes_room(guard: Guard) -> None:
    async with guard(default=Quota(streams=1), max_streams=8) as door:
        acme, globex = await door.key("acme"), await door.key("globex")
        door.door.engine.hold = asyncio.Event()
        held = asyncio.create_task(door.chat(acme))
        await door.door.engine.started.wait()
        refused = await door.chat(acme, stream=True)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "streams")
        assert refused.headers["retry-after"] == "1"
        door.door.engine.hold.set()
        assert (await held).status_code == 200
        assert (await door.chat(acme)).status_code == (await door.chat(globex)).status_code == 200
        assert door.services.gate.quotas.streams("acme") == door.services.state.streams == 0


async def test_a_full_door_is_a_503_which_is_nobody_s_quota(guard: Guard) -> None:
    async with guard(max_streams=1) as door:
        acme, globex = await door.key("acme"), await door.key("globex")
        door.door.engine.hold = asyncio.Event()
        held = asyncio.create_task(door.chat(acme))
        await door.door.engine.started.wait()
        full = await door.chat(globex)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        door.door.engine.hold.set()
        assert (await held).status_code == 200


# -- sizes


@pytest.mark.parametrize("path", [PREDICT, CHAT, "/healthz"])
async def test_headers_over_the_limit_are_a_431(guard: Guard, path: str) -> None:
    async with guard(needs_key=False, max_header_bytes=2048) as door:
        reply = await door.http.get(path, headers={"X-Large": "x" * 2048})
        assert reply.status_code == 431
        assert "at most 2048" in reply.text
        assert (await door.predict({"X-Large": "x" * 1024})).status_code == 200


async def test_a_prompt_over_the_limit_is_a_400_that_names_it_and_is_never_tokenised(guard: Guard) -> None:
    async with guard(needs_key=False, max_prompt_chars=50) as door:
        chat = await door.chat(messages=[{"role": "user", "content": "x" * 26}, {"role": "user", "content": "y" * 26}])
        completion = await door.http.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 51})
        for reply, field in ((chat, "messages"), (completion, "prompt")):
            assert reply.status_code == 400
            error = reply.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", field)
            assert "at most 50" in error["message"]


async def test_a_refusal_comes_before_the_body_is_read(guard: Guard) -> None:
    """With a body that no route would take: it is the key that is missed."""
    async with guard() as door:
        reply = await door.http.post(PREDICT, content=b"x" * 10**6, headers={"Content-Type": "text/plain"})
        assert reply.status_code == 401
