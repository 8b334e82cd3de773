"""Leases on a clock in the test's hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.leases import LOOKS, Leases

LEASE_S = 5.0
LOOK_S = LEASE_S / LOOKS


class Watch:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def looks(leases: Leases, watch: Watch, num_looks: int, apart_s: float = LOOK_S) -> list[bytes]:
    lapsed = []
    for _ in range(num_looks):
        watch.now += apart_s
        lapsed += leases.lapsed()
    return lapsed


def test_a_silent_client_lapses_once_when_its_lease_is_over() -> None:
    watch = Watch()
    leases = Leases(LEASE_S, watch)
    leases.renew(b"a")
    assert looks(leases, watch, LOOKS - 1) == []
    assert looks(leases, watch, 1) == [b"a"]
    assert looks(leases, watch, 3 * LOOKS) == []


def test_a_client_that_renews_never_lapses_and_delays_nobody_else() -> None:
    watch = Watch()
    leases = Leases(LEASE_S, watch)
    leases.renew(b"silent")
    lapsed = []
    for _ in range(3 * LOOKS):
        leases.renew(b"talks")
        lapsed += looks(leases, watch, 1)
    assert lapsed == [b"silent"]


def test_an_engine_that_was_stopped_itself_hears_its_clients_before_it_judges_them() -> None:
    watch = Watch()
    leases = Leases(LEASE_S, watch)
    leases.renew(b"a")
    watch.now += 100 * LEASE_S
    assert leases.lapsed() == [], "one look is worth a tenth of a lease, however long it took"
    leases.renew(b"a")  # its renewals waited in the socket
    assert looks(leases, watch, LOOKS - 1) == []


def test_a_client_that_comes_back_has_a_whole_lease_again() -> None:
    watch = Watch()
    leases = Leases(LEASE_S, watch)
    leases.renew(b"a")
    assert looks(leases, watch, LOOKS) == [b"a"]
    leases.renew(b"a")
    assert looks(leases, watch, LOOKS - 1) == []
    assert looks(leases, watch, 1) == [b"a"]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("renew"), st.sampled_from([b"a", b"b", b"c"])),
            st.tuples(st.just("look"), st.floats(0.001, LOOK_S)),
        ),
        max_size=80,
    )
)
def test_a_client_lapses_at_the_first_look_after_its_lease_and_not_before(events: list[tuple[str, object]]) -> None:
    watch = Watch()
    leases = Leases(LEASE_S, watch)
    heard: dict[object, float] = {}
    for kind, what in events:
        if kind == "renew":
            assert isinstance(what, bytes)
            leases.renew(what)
            heard[what] = elapsed(watch)
        else:
            assert isinstance(what, float)
            watch.now += what
            lapsed = leases.lapsed()
            for client in lapsed:
                assert elapsed(watch) - heard.pop(client) >= LEASE_S - 1e-6
            assert all(elapsed(watch) - since <= LEASE_S + 1e-6 for since in heard.values())


def elapsed(watch: Watch) -> float:
    return watch.now - 1000.0
