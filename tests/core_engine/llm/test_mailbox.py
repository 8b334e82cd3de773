"""The engine's socket, with clients of the test's own behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from core_engine.llm import messages as wire
from core_engine.llm.mailbox import MAX_UNSENT_FRAMES, Mailbox

ENDPOINT = "inproc://mailbox"
WAIT_MS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def mailbox(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Mailbox]:
    mailbox = Mailbox(context, ENDPOINT)
    yield mailbox
    mailbox.close(0)


@contextmanager
def client(context: zmq.Context[zmq.Socket[bytes]], **options: int) -> Iterator[zmq.Socket[bytes]]:
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            dealer.setsockopt(getattr(zmq, name), value)
        dealer.connect(ENDPOINT)
        yield dealer


def sent_by(mailbox: Mailbox, dealer: zmq.Socket[bytes]) -> bytes:
    """Say hello; the client's name in the mailbox."""
    dealer.send(msgspec.msgpack.encode(wire.Hello()))
    assert mailbox.wait(WAIT_MS)
    ((name, message),) = mailbox.receive()
    assert message == wire.Hello()
    return name


def read(dealer: zmq.Socket[bytes]) -> wire.ToClient:
    assert dealer.poll(WAIT_MS)
    return msgspec.msgpack.decode(dealer.recv(), type=wire.ToClient)


def test_events_of_one_client_leave_in_one_frame_with_the_snapshot(
    context: zmq.Context[zmq.Socket[bytes]], mailbox: Mailbox
) -> None:
    with client(context) as one, client(context) as two:
        first, second = sent_by(mailbox, one), sent_by(mailbox, two)
        mailbox.put(first, wire.Delta("a", (1,)))
        mailbox.put(second)
        mailbox.put(first, wire.Delta("b", (2,)), wire.Loaded("c", "s:1"))
        mailbox.flush(wire.Snapshot(step=4))
        assert read(one) == wire.Frame(
            (wire.Delta("a", (1,)), wire.Delta("b", (2,)), wire.Loaded("c", "s:1")), wire.Snapshot(step=4)
        )
        assert read(two) == wire.Frame((), wire.Snapshot(step=4))
        mailbox.flush(wire.Snapshot(step=5))
        assert not one.poll(20), "what was sent is not sent again"
        assert mailbox.lost() == {}


def test_what_is_no_message_is_passed_over(context: zmq.Context[zmq.Socket[bytes]], mailbox: Mailbox) -> None:
    with client(context) as dealer:
        dealer.send(b"\xc1 nonsense")
        dealer.send_multipart([b"two", b"parts"])
        dealer.send(msgspec.msgpack.encode(["tomorrow", 1]))
        dealer.send(msgspec.msgpack.encode(wire.Abort("a")))
        assert mailbox.wait(WAIT_MS)
        assert [message for _, message in mailbox.receive()] == [wire.Abort("a")]


def test_a_client_that_has_vanished_is_told_once(context: zmq.Context[zmq.Socket[bytes]], mailbox: Mailbox) -> None:
    with client(context) as dealer:
        name = sent_by(mailbox, dealer)
    while not (lost := mailbox.lost()):  # closing takes the context a moment
        mailbox.put(name)
        mailbox.flush(wire.Snapshot())
    assert lost == {name: wire.AbortReason.VANISHED}
    assert mailbox.lost() == {}


def test_a_client_that_reads_nothing_is_given_up_and_nobody_waits_for_it(
    context: zmq.Context[zmq.Socket[bytes]], mailbox: Mailbox
) -> None:
    with client(context, RCVHWM=1) as deaf, client(context) as other:
        name, others = sent_by(mailbox, deaf), sent_by(mailbox, other)
        for _ in range(MAX_UNSENT_FRAMES + 10):
            mailbox.send(name, wire.Frame((), wire.Snapshot()))
        assert mailbox.lost() == {name: wire.AbortReason.FULL}
        mailbox.put(others, wire.Delta("a", (1,)))
        mailbox.flush(wire.Snapshot())
        assert isinstance(read(other), wire.Frame)


def test_an_endpoint_that_is_taken_is_an_error_and_leaves_nothing_open(
    context: zmq.Context[zmq.Socket[bytes]], mailbox: Mailbox
) -> None:
    with pytest.raises(zmq.ZMQError):
        Mailbox(context, ENDPOINT)
    with client(context) as dealer:
        assert sent_by(mailbox, dealer)
