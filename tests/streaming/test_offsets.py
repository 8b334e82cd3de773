"""What may be committed, for every order of taking, finishing, revoking and losing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming.offsets import OffsetTracker, Partition

P, Q = Partition("t", 0), Partition("t", 1)


def tracker_with(*offsets: int) -> tuple[OffsetTracker, int]:
    tracker = OffsetTracker()
    tracker.assign([P])
    epochs = {tracker.take(P, offset) for offset in offsets}
    assert len(epochs) == 1
    epoch = epochs.pop()
    assert epoch is not None
    return tracker, epoch


def test_only_the_contiguous_finished_ones_are_committable() -> None:
    tracker, epoch = tracker_with(3, 4, 5)
    assert tracker.committable() == {}
    tracker.finish(P, 4, epoch)
    assert tracker.committable() == {}
    tracker.finish(P, 3, epoch)
    assert tracker.committable() == {P: 5}
    tracker.finish(P, 5, epoch)
    assert tracker.committable() == {P: 6}
    tracker.committed({P: 6}, {P: epoch})
    assert tracker.committable() == {}


def test_a_hole_in_the_log_is_no_gap() -> None:
    """Compaction and transactions leave offsets out."""
    tracker, epoch = tracker_with(3, 7, 8)
    tracker.finish(P, 3, epoch)
    tracker.finish(P, 7, epoch)
    assert tracker.committable() == {P: 8}


def test_results_of_an_older_epoch_change_nothing() -> None:
    tracker, old = tracker_with(0, 1)
    tracker.finish(P, 0, old)
    assert tracker.revoke([P, Q]) == {P: 1}
    assert not tracker.finish(P, 1, old)
    tracker.assign([P])
    new = tracker.take(P, 1)
    assert new != old
    assert not tracker.finish(P, 1, old)
    assert not tracker.holds(P, old)
    assert tracker.committable() == {}
    tracker.committed({P: 9}, {P: old})
    assert new is not None
    tracker.finish(P, 1, new)
    assert tracker.committable() == {P: 2}, "a commit that was answered late fences nothing out"


def test_what_was_lost_has_no_last_commit() -> None:
    tracker, epoch = tracker_with(0)
    tracker.finish(P, 0, epoch)
    tracker.lose([P])
    assert tracker.committable() == tracker.revoke([P]) == {}


def test_a_record_of_a_partition_that_is_not_ours_has_no_epoch() -> None:
    tracker, _ = tracker_with(0)
    assert tracker.take(Q, 0) is None


def test_a_log_that_was_set_back_begins_anew() -> None:
    """A broker that lost its memory: lower offsets are other records, and may be committed."""
    tracker, old = tracker_with(50, 51)
    tracker.finish(P, 50, old)
    tracker.committed({P: 51}, {P: old})
    new = tracker.take(P, 0)
    assert new is not None
    assert not tracker.finish(P, 51, old)
    tracker.finish(P, 0, new)
    assert tracker.committable() == {P: 1}


def test_finishing_twice_is_once() -> None:
    tracker, epoch = tracker_with(0, 1)
    for _ in range(2):
        assert tracker.finish(P, 0, epoch)
    assert tracker.num_outstanding == 1
    assert tracker.outstanding(P) == 1
    assert tracker.outstanding(Q) == 0


class Consumer(RuleBasedStateMachine):
    """One member against a log of two partitions and a group that keeps what is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.group = {P: 0, Q: 0}  # what the broker holds
        self.position = {P: 0, Q: 0}
        self.owned: set[Partition] = set()
        self.finished: dict[Partition, set[int]] = {P: set(), Q: set()}  # under any epoch: their effects are there
        self.live: list[tuple[Partition, int, int]] = []
        self.stale: list[tuple[Partition, int, int]] = []

    @initialize()
    def begin(self) -> None:
        self.assign([P, Q])

    partitions = st.lists(st.sampled_from([P, Q]), min_size=1, max_size=2, unique=True)

    @rule(partitions=partitions)
    def assign(self, partitions: list[Partition]) -> None:
        new = [p for p in partitions if p not in self.owned]
        self.tracker.assign(new)
        self.owned |= set(new)
        self.position |= {p: self.group[p] for p in new}

    @rule(partitions=partitions, can_commit=st.booleans())
    def revoke(self, partitions: list[Partition], can_commit: bool) -> None:
        due = self.tracker.revoke(partitions)
        if can_commit:
            self.commit_to_group(due)
        self.drop(partitions)

    @rule(partitions=partitions)
    def lose(self, partitions: list[Partition]) -> None:
        self.tracker.lose(partitions)
        self.drop(partitions)

    @rule(partition=st.sampled_from([P, Q]), count=st.integers(1, 5), hole=st.integers(0, 2))
    def take(self, partition: Partition, count: int, hole: int) -> None:
        for _ in range(count):
            offset = self.position[partition] + hole
            epoch = self.tracker.take(partition, offset)
            assert (epoch is None) == (partition not in self.owned)
            if epoch is not None:
                self.position[partition] = offset + 1
                self.live.append((partition, offset, epoch))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        partition, offset, epoch = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        assert self.tracker.finish(partition, offset, epoch)
        self.finished[partition].add(offset)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def finish_too_late(self, data: st.DataObject) -> None:
        partition, offset, epoch = self.stale.pop(data.draw(st.integers(0, len(self.stale) - 1)))
        before = self.tracker.committable()
        assert not self.tracker.finish(partition, offset, epoch)
        assert self.tracker.committable() == before

    @rule(is_taken=st.booleans())
    def commit(self, is_taken: bool) -> None:
        due = self.tracker.committable()
        epochs = self.tracker.epochs(due)
        if is_taken:
            self.commit_to_group(due)
            self.tracker.committed(due, epochs)

    def commit_to_group(self, due: dict[Partition, int]) -> None:
        for partition, offset in due.items():
            assert offset > self.group[partition], "a commit never goes back"
            taken = {o for p, o, _ in self.live if p == partition}
            assert not any(o < offset for o in taken), "nothing unfinished is committed"
            self.group[partition] = offset

    def drop(self, partitions: list[Partition]) -> None:
        self.owned -= set(partitions)
        self.stale += [each for each in self.live if each[0] in partitions]
        self.live = [each for each in self.live if each[0] not in partitions]

    @invariant()
    def outstanding_is_what_was_taken_and_not_finished(self) -> None:
        assert self.tracker.num_outstanding == len(self.live)


TestConsumer = Consumer.TestCase
TestConsumer.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
