from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.comparison.installation import PeerFailed
from benchmarks.features import feast_peer


def test_the_reply_is_the_last_object_whatever_a_library_says_after_it() -> None:
    assert feast_peer.reply('{"a": 0}\n{"a": 1}\nwarning: goodbye\n') == {"a": 1}
    with pytest.raises(PeerFailed, match="no reply, but 'nothing'"):
        feast_peer.reply("nothing")


def test_what_is_not_installed_says_how_it_would_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_BENCH_PEERS", str(tmp_path))
    absent = feast_peer.why_absent()
    assert absent is not None
    assert "python -m benchmarks.featurestore --install" in absent
    (tmp_path / "feast").mkdir()
    (tmp_path / "feast" / "installed").touch()
    assert feast_peer.why_absent() is None


def test_a_script_that_fails_says_its_last_words() -> None:
    with pytest.raises(PeerFailed, match="no_such_script"):
        feast_peer.asked("no_such_script.py", {}, Path(sys.executable))
