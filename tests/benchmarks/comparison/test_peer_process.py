"""A peer's process from start to end, with a runner script that stands in for a real peer."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from benchmarks.comparison.child import tree
from benchmarks.comparison.installation import Installation, PeerFailed
from benchmarks.comparison.peer_process import SCRIPTS, PeerProcess
from benchmarks.comparison.variants import Variant
from benchmarks.comparison.workload import Job

RUNNER = f"""
import subprocess, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from peer_loop import Peer, serve

class Stub(Peer):
    version = "3.1"

    def __init__(self, settings):
        print("noise on stdout")
        if settings["mode"] == "broken":
            sys.exit("the model file is damaged")
        if settings["mode"] == "slow":
            sys.stdin.read()
        self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def run(self, jobs, concurrency):
        print("more noise")
        if concurrency == 13:
            raise ValueError("unlucky")
        return sum(job.max_tokens for job in jobs) - (concurrency == 7)

serve(Stub)
"""


def start(tmp_path: Path, mode: str = "", patience_s: float | None = None) -> PeerProcess:
    (tmp_path / "run_transformers.py").write_text(RUNNER)
    variant = Variant("stub", "transformers", "none", 8, "model", mode)
    return PeerProcess(variant, Installation("transformers", tmp_path), tmp_path, patience_s=patience_s)


def test_it_tells_its_version_and_serves_jobs_whatever_it_prints(tmp_path: Path) -> None:
    peer = start(tmp_path)
    try:
        assert peer.label.version == "3.1"
        assert peer.run([Job((1, 2), 3), Job((4,), 5)], 2) >= 0
        assert peer.peak_rss_bytes > 1 << 20
    finally:
        peer.close()


def test_a_failure_is_named_and_the_next_order_is_served(tmp_path: Path) -> None:
    peer = start(tmp_path)
    try:
        with pytest.raises(PeerFailed, match="ValueError: unlucky"):
            peer.run([Job((1,), 3)], 13)
        with pytest.raises(PeerFailed, match="made 2 tokens, expected 3"):
            peer.run([Job((1,), 3)], 7)
        assert peer.run([Job((1,), 3)], 1) >= 0
    finally:
        peer.close()


def test_a_peer_without_full_distributions_says_so(tmp_path: Path) -> None:
    peer = start(tmp_path)
    try:
        with pytest.raises(PeerFailed, match="gives no full distributions"):
            peer.save_logits([1, 2], tmp_path / "logits.npy")
    finally:
        peer.close()


def test_a_peer_that_does_not_start_says_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="the model file is damaged"):
        start(tmp_path, "broken")


def test_what_a_peer_started_ends_with_it(tmp_path: Path) -> None:
    peer = start(tmp_path)
    [_, child] = tree(peer.pid)
    handle = os.pidfd_open(child)  # readable once it has ended
    peer.close()
    ended, _, _ = select.select([handle], [], [], 60)
    os.close(handle)
    assert ended == [handle]


def test_a_peer_that_is_not_ready_in_time_is_given_up_and_ended(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=r"it was not ready after 0\.1 s"):
        start(tmp_path, "slow", patience_s=0.1)
