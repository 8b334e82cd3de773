"""Whether a Redis (each primary of a cluster) is fit to hold features, and what it holds that no registry knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from core_engine.errors import StoreUnavailable
from featurestore.instants import Clock, to_us, utc_now
from featurestore.lifecycle.checks import Check, ok, problem, warning
from featurestore.lifecycle.pace import UNBOUNDED, Pace
from featurestore.online.connection import links_of
from featurestore.online.link import Link
from featurestore.online.server_functions import refusal

REDIS: Final = "redis"
REACHABLE: Final = "reachable"
MIN_VERSION: Final = (7, 0)  # server-side functions
FULL: Final = 0.9  # of maxmemory
SKEW_WARNING_S: Final = 1.0
SKEW_PROBLEM_S: Final = 60.0  # TTLs are judged by our clock, rows expire by the server's
SCAN_COUNT: Final = 1_000
MAX_LOOKS: Final = 1_000  # at a million keys; a doctor is no census
VIEW_KEY: Final = re.compile(rb"hr:([A-Za-z_][A-Za-z0-9_]*):(\d+):")

Facts = Mapping[str, str]


async def server_checks(client: Redis, clock: Clock = utc_now) -> list[Check]:
    """Never raises for a store that is away: that is a finding, and then the only one."""
    try:
        links = await links_of(client).primaries()
        found = [check for link in links for check in await _of_server(link, clock)]
    except StoreUnavailable as error:
        return [problem(REDIS, REACHABLE, str(error), "start it, or name another one in HEADRACE_REDIS__URL")]
    return [ok(REDIS, REACHABLE, f"{len(links)} server(s)"), *found]


async def unknown_views(client: Redis, known: Iterable[tuple[str, int]], pace: Pace = UNBOUNDED) -> list[Check]:
    """View versions with keys in Redis that are not among `known`. Looks at a million keys of each server at most."""
    registered, seen, is_whole = set(known), set[tuple[str, int]](), True
    for link in await links_of(client).primaries():
        cursor = b"0"
        for _ in range(MAX_LOOKS):
            await pace.take(SCAN_COUNT)
            cursor, keys = await _asked(link, "SCAN", cursor, "MATCH", "hr:*", "COUNT", SCAN_COUNT)
            seen |= {(m[1].decode(), int(m[2])) for key in keys if (m := VIEW_KEY.match(key))}
            if cursor == b"0":
                break
        is_whole &= cursor == b"0"
    strangers = sorted(seen - registered)
    if strangers:
        names = ", ".join(f"{name}:{version}" for name, version in strangers)
        advice = "another registry's, or left behind: headrace features delete VIEW --version N --unregistered"
        return [warning(REDIS, "unknown views", names, advice)]
    return [ok(REDIS, "unknown views", "none" if is_whole else "none among the keys looked at")]


async def _of_server(link: Link, clock: Clock) -> list[Check]:
    before_us = to_us(clock(), "clock")
    seconds, micros = await _asked(link, "TIME")
    skew_s = (int(seconds) * 1_000_000 + int(micros) - (before_us + to_us(clock(), "clock")) / 2) / 1e6
    return [*judged(_facts(await _asked(link, "INFO")), await _settings(link)), _skew(skew_s)]


def judged(facts: Facts, settings: Facts) -> list[Check]:
    """What a server says of itself: INFO as `facts`, and of CONFIG what it lets us see."""
    return [_version(facts), _eviction(facts), _memory(facts), _persistence(facts, settings)]


def _version(facts: Facts) -> Check:
    version = facts.get("redis_version", "0")  # Valkey tells which Redis it stands for
    name = f"{facts.get('server_name', 'redis')} {facts.get('valkey_version', version)}"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MIN_VERSION:
        return problem(REDIS, "version", name, "server-side functions need Redis 7.0, or any Valkey: upgrade")
    return ok(REDIS, "version", name)


def _eviction(facts: Facts) -> Check:
    policy, limit = facts.get("maxmemory_policy", "unknown"), int(facts.get("maxmemory", 0))
    found = f"{policy}, maxmemory {limit}"
    if policy == "noeviction" or not limit:
        return ok(REDIS, "eviction", found)
    advice = "it evicts rows while they are served (each has an expiry): set maxmemory-policy noeviction"
    return problem(REDIS, "eviction", found, advice)


def _memory(facts: Facts) -> Check:
    used, limit = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    found = f"{used} bytes used" + (f" of {limit}" if limit else ", no limit set")
    if limit and used > FULL * limit:
        return warning(REDIS, "memory", found, "writes are refused when it is full: delete views, or give it more")
    return ok(REDIS, "memory", found)


def _persistence(facts: Facts, settings: Facts) -> Check:
    appends = facts.get("aof_enabled") == "1"
    saves = settings.get("save")
    if appends or saves:
        return ok(REDIS, "persistence", "append-only file" if appends else f"snapshots ({saves})")
    if saves is None:
        return warning(REDIS, "persistence", "no append-only file; CONFIG is refused here", "ask who runs it")
    advice = "a restart loses every row and window; the next materialization notices and fills everything again"
    return warning(REDIS, "persistence", "off", advice)


def _skew(skew_s: float) -> Check:
    found = f"{skew_s:+.3f} s from this machine's"
    if abs(skew_s) <= SKEW_WARNING_S:
        return ok(REDIS, "clock", found)
    make = problem if abs(skew_s) > SKEW_PROBLEM_S else warning
    return make(REDIS, "clock", found, "ages are judged here and rows expire there: set both clocks by NTP")


async def _settings(link: Link) -> Facts:
    """Empty where CONFIG is refused, as managed servers do."""
    [reply] = (await link.ask([("CONFIG", "GET", "save")])).replies
    if isinstance(reply, ResponseError):
        return {}
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(key): _text(value) for key, value in pairs}


def _facts(info: Any) -> Facts:
    return dict(line.split(":", 1) for line in _text(info).splitlines() if ":" in line)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def _asked(link: Link, *command: str | bytes | int) -> Any:
    [reply] = (await link.ask([command])).replies
    if isinstance(reply, ResponseError):
        raise refusal(reply)
    return reply
