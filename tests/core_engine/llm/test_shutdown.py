from __future__ import annotations

from core_engine.llm.shutdown import Shutdown


class Watch:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_nobody_asked_so_nothing_is_due() -> None:
    shutdown = Shutdown(10.0, Watch())
    assert not shutdown.is_due(has_attempts=False)
    assert not shutdown.is_asked
    assert not shutdown.is_draining


def test_draining_ends_when_nothing_is_left() -> None:
    shutdown = Shutdown(10.0, Watch())
    shutdown.ask()
    assert shutdown.is_draining
    assert not shutdown.is_due(has_attempts=True)
    assert shutdown.is_due(has_attempts=False)


def test_draining_ends_at_its_bound_and_says_so() -> None:
    watch = Watch()
    shutdown = Shutdown(10.0, watch)
    shutdown.ask()
    watch.now += 9.99
    assert not shutdown.is_due(has_attempts=True)
    watch.now += 0.01
    assert shutdown.is_due(has_attempts=True)
    assert shutdown.reason == "the engine drained for 10 s and stopped"


def test_a_second_word_ends_it_at_once() -> None:
    shutdown = Shutdown(10.0, Watch())
    shutdown.ask()
    shutdown.ask()
    assert shutdown.is_due(has_attempts=True)
    assert shutdown.reason == "the engine was stopped"


def test_stopping_at_once_needs_no_draining() -> None:
    shutdown = Shutdown(10.0, Watch())
    shutdown.at_once()
    assert shutdown.is_due(has_attempts=True)
    assert shutdown.is_asked
    assert not shutdown.is_draining


def test_an_end_that_nobody_asked_for_is_a_failure() -> None:
    assert Shutdown(10.0, Watch()).reason == "the engine failed"
