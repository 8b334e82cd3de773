from __future__ import annotations

from streaming.report import Tally


def test_quantiles_are_values_that_were_seen() -> None:
    tally = Tally(concurrency=2)
    tally.latencies_s.extend(n / 1000 for n in range(100, 0, -1))
    tally.scoring_s.extend([0.002, 0.001])
    report = tally.report()
    assert (report.p50_ms, report.p99_ms, report.max_ms) == (50.0, 99.0, 100.0)
    assert (report.scoring_p50_ms, report.scoring_p99_ms) == (1.0, 2.0)


def test_a_worker_that_saw_nothing_has_no_latency() -> None:
    report = Tally(concurrency=2).report()
    assert (report.n, report.p50_ms, report.p99_ms, report.max_ms) == (0, None, None, None)
    assert (report.batch_sizes, report.rungs, report.windows, report.dead_letters) == ({}, {}, {}, {})
