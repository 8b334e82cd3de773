from __future__ import annotations

import re
from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from core_engine.simulation.trace import TraceRow, read_trace
from tests.core_engine.simulation.traces import azure, lengths

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LENGTHS = "num_prefill_tokens,num_decode_tokens\n"


def test_an_azure_trace_counts_from_its_first_arrival(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path / "a.csv", [(3.9799600, 4808, 10), (4.0319600, 3180, 8)]))
    assert trace.is_timed
    first, second = trace.rows
    assert first == TraceRow(4808, 10, 0.0)
    assert second.arrival_s == pytest.approx(0.052, abs=1e-6)
    assert (second.prompt_tokens, second.output_tokens) == (3180, 8)


def test_rows_are_put_in_order_of_arrival(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path / "a.csv", [(9.0, 1, 1), (2.0, 2, 2), (5.0, 3, 3)]))
    assert [(row.arrival_s, row.prompt_tokens) for row in trace.rows] == [(0.0, 2), (3.0, 3), (7.0, 1)]


def test_instants_with_an_offset_are_compared_with_those_of_another(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "2023-11-16 18:00:00+01:00,1,1\n2023-11-16 17:00:04+00:00,1,1\n")
    assert [row.arrival_s for row in read_trace(path).rows] == [0.0, 4.0]


def test_lengths_alone_are_a_backlog_in_the_order_of_the_file(tmp_path: Path) -> None:
    trace = read_trace(lengths(tmp_path / "b.csv", [(3772, 54), (12, 9)]))
    assert not trace.is_timed
    assert trace.rows == (TraceRow(3772, 54), TraceRow(12, 9))


def test_a_mooncake_trace_has_milliseconds_and_prefix_ids(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}\n'
        '{"timestamp": 2000, "input_length": 9, "output_length": 6, "hash_ids": [0]}\n'
    )
    trace = read_trace(path)
    assert trace.rows == (TraceRow(600, 5, 0.0, (0, 7)), TraceRow(9, 6, 1.5, (0,)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (AZURE + "2023-11-16 18:17:03,12,3\nyesterday,12,3\n", "line 3: TIMESTAMP = 'yesterday', expected a date"),
        (AZURE + "2023-11-16 18:17:03,twelve,3\n", "line 2: ContextTokens = 'twelve', expected a whole number"),
        (AZURE + "2023-11-16 18:17:03,12\n", "line 2: GeneratedTokens = None, expected a whole number"),
        (AZURE + "2023-11-16 18:17:03,12,0\n", "line 2: GeneratedTokens = 0, expected at least 1 token"),
        (LENGTHS + "5,5\n-4,5\n", "line 3: num_prefill_tokens = -4, expected at least 1 token"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}', "line 1: timestamp = -1, expected milliseconds"),
        ('{"timestamp": 0, "output_length": 1}', "line 1: input_length = None, expected a whole number"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-2]}', "line 1: hash_ids = [-2]"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n[1]', "line 2: '[1]', expected an object"),
        ('{"timestamp": 0, "input', "line 1: not JSON"),
        ("when,how,many\n1,2,3\n", "line 1: 'when,how,many' is no known header; expected TIMESTAMP,"),
        (AZURE, "has no requests"),
        ("", "is no known header"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_field(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(sentence)) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.csv cannot be read"):
        read_trace(tmp_path / "nowhere.csv")
