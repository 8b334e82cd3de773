"""Redis Cluster: commands grouped by the node that owns their slot, one round trip per node, nodes side by side.

A node that gave a slot away says so (MOVED, ASK) and is followed. The map of slots is asked for at the first request,
and again after a loss, so that a replica that took over is found. Source: redis.io, "Redis cluster specification".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from redis.crc import key_slot
from redis.exceptions import ResponseError

from core_engine.errors import StoreUnavailable
from featurestore.online.link import Answer, Command, NodeLink

MAX_REDIRECTS: Final = 3
KEY_AT: Final = {"FCALL": 3}  # elsewhere the key follows the command's name
WITHOUT_KEY: Final = frozenset({"FUNCTION"})  # for every primary


class Address(NamedTuple):
    host: str
    port: int


class ClusterLink:
    """A link to all primaries of a cluster; `open_node` makes the link to one, `seed` is asked for the others first."""

    def __init__(self, open_node: Callable[[Address], NodeLink], seed: Address) -> None:
        self._open_node = open_node
        self._seed = seed
        self._nodes: dict[Address, NodeLink] = {}
        self._owners: dict[int, Address] = {}

    async def ask(self, commands: Sequence[Command]) -> Answer:
        """As `Link.ask`; a command without a key goes to every primary, and its reply is a refusal where one refused.

        Raises:
            StoreUnavailable: a node is away, no node owns a slot, or a slot moves faster than it can be followed.
        """
        if not self._owners:
            await self._discover()
        replies: list[Any] = [None] * len(commands)
        routes = {i: self._targets(command) for i, command in enumerate(commands)}
        num_trips = 0
        for _ in range(1 + MAX_REDIRECTS):
            if not routes:
                return Answer(replies, num_trips)
            num_trips += await self._round(commands, routes, replies)
            routes = {i: [moved] for i in routes if (moved := self._redirected(replies[i])) is not None}
        raise StoreUnavailable(f"online store: a slot of the cluster moved {MAX_REDIRECTS} times during one request")

    async def primaries(self) -> list[NodeLink]:
        """A link to each node that owns a slot. Raises `StoreUnavailable`."""
        if not self._owners:
            await self._discover()
        return [self._node(address) for address in sorted(set(self._owners.values()))]

    async def aclose(self) -> None:
        for node in self._nodes.values():
            await node.aclose()

    async def _round(self, commands: Sequence[Command], routes: dict[int, list[_Target]], replies: list[Any]) -> int:
        """One round trip to each node that `routes` name; fills `replies` and returns the number of nodes."""
        by_node: dict[Address, list[tuple[int, bool]]] = defaultdict(list)
        for i, targets in routes.items():
            for target in targets:
                by_node[target.address].append((i, target.is_asking))
            replies[i] = None
        answers = await asyncio.gather(
            *(self._ask_node(address, commands, wanted) for address, wanted in by_node.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                self._owners.clear()  # somebody else may own its slots by the next request
                raise answer
        for wanted, answer in zip(by_node.values(), answers, strict=True):
            assert isinstance(answer, list)
            for (i, _), reply in zip(wanted, answer, strict=True):
                if not isinstance(replies[i], ResponseError):  # of several nodes, the one that refused is heard
                    replies[i] = reply
        return len(by_node)

    async def _ask_node(
        self, address: Address, commands: Sequence[Command], wanted: Iterable[tuple[int, bool]]
    ) -> list[Any]:
        sent: list[Command] = []
        at: list[int] = []
        for i, is_asking in wanted:
            if is_asking:
                sent.append(("ASKING",))
            at.append(len(sent))
            sent.append(commands[i])
        answer = await self._node(address).ask(sent)
        return [answer.replies[position] for position in at]

    def _targets(self, command: Command) -> list[_Target]:
        name = str(command[0])
        if name in WITHOUT_KEY:
            return [_Target(address) for address in sorted(set(self._owners.values()))]
        slot = _slot(command[KEY_AT.get(name, 1)])
        owner = self._owners.get(slot)
        if owner is None:
            self._owners.clear()
            raise StoreUnavailable(f"online store: no node of the cluster owns slot {slot}")
        return [_Target(owner)]

    def _redirected(self, reply: Any) -> _Target | None:
        """Where to ask instead: `MOVED <slot> <host>:<port>` for ever, `ASK` of the same form for this once."""
        if not isinstance(reply, ResponseError):
            return None
        kind, *rest = str(reply).split(" ")
        if kind not in ("MOVED", "ASK"):
            return None
        host, _, port = rest[1].rpartition(":")
        address = Address(host or self._seed.host, int(port))
        if kind == "MOVED":
            self._owners[int(rest[0])] = address
        return _Target(address, is_asking=kind == "ASK")

    def _node(self, address: Address) -> NodeLink:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._open_node(address)
        return node

    async def _discover(self) -> None:
        """The map of slots, from the first node that tells it; the last refusal is raised."""
        refusal = StoreUnavailable("online store: no node of the cluster answers")
        for address in dict.fromkeys((self._seed, *self._nodes)):
            try:
                (reply,) = (await self._node(address).ask([("CLUSTER", "SLOTS")])).replies
            except StoreUnavailable as error:
                refusal = error
                continue
            if isinstance(reply, ResponseError):
                refusal = StoreUnavailable(f"online store: {address.host}:{address.port} is no cluster node: {reply}")
                continue
            self._owners = _owners(reply, address.host)
            return
        raise refusal


class _Target(NamedTuple):
    address: Address
    is_asking: bool = False


def _slot(key: str | bytes | int) -> int:
    slot: int = key_slot(key.encode() if isinstance(key, str) else bytes(key))
    return slot


def _owners(ranges: Sequence[Sequence[Any]], asked_host: str) -> dict[int, Address]:
    """Slot to primary, of a reply to CLUSTER SLOTS; a node that does not know its own name gives none."""
    owners = {}
    for first, last, primary, *_ in ranges:
        address = Address((primary[0] or b"").decode() or asked_host, int(primary[1]))
        owners.update(dict.fromkeys(range(first, last + 1), address))
    return owners
