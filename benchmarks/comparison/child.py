"""A process of one side of the comparison, with its log, its memory and its whole group at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

GRACE_S = 20.0
SAMPLE_S = 0.2
PAGE = os.sysconf("SC_PAGE_SIZE")


class Child:
    """Runs `command` in a session of its own; `log` gets what it prints. `piped` opens `stdin` and `stdout` as text."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path, *, piped: bool = False) -> None:
        pipe = subprocess.PIPE if piped else None
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or out,
                stderr=out,
                start_new_session=True,
                text=True,
            )

    def close(self) -> None:
        """End the process and all that it started, politely first."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def wait_end(self) -> None:
        """Until a process that is ending has written all its log."""
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass

    def last_words(self, count: int = 3) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-count:])[-400:]


def tree(pid: int) -> Iterator[int]:
    """The process and its descendants, as they are now."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it ended meanwhile
            continue
        for child in children:
            yield from tree(int(child))


def rss_bytes(pids: Sequence[int]) -> int:
    """Resident memory of all processes of these trees; pages that two of them share count twice."""
    total = 0
    for pid in (each for root in pids for each in tree(root)):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return total


@contextmanager
def peak_rss(pids: Sequence[int]) -> Iterator[list[int]]:
    """Samples of resident memory while the block runs, in bytes; there is at least one."""
    samples, ended = [rss_bytes(pids)], threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            samples.append(rss_bytes(pids))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(rss_bytes(pids))
