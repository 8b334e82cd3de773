"""What protects a door is read when it is asked for, or written down now and then."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from headrace.door_protection import Figure, show, write_down


def test_a_figure_that_is_shown_is_read_when_it_is_asked_for() -> None:
    registry, now = CollectorRegistry(), [1.0]
    show([Figure(Gauge("held", "", registry=registry), lambda: now[-1])])
    now.append(2.0)
    assert registry.get_sample_value("held") == 2.0


def test_a_figure_that_is_written_down_is_what_it_was_then() -> None:
    registry, now = CollectorRegistry(), [1.0]
    figures = [Figure(Gauge("held", "", registry=registry), lambda: now[-1])]
    write_down(figures)
    now.append(2.0)
    assert registry.get_sample_value("held") == 1.0
    write_down(figures)
    assert registry.get_sample_value("held") == 2.0
