"""The gate fails faults that mean NLL does not show, each in the real model and in the C++ step as it is served."""

from __future__ import annotations

import pytest

from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.model_decoder import Dials, load_decoder
from core_engine.llm.tokenizer import Tokenizer
from core_engine.quality.comparison import compare_all
from core_engine.quality.gate import Findings
from core_engine.quality.greedy import GreedyReport
from core_engine.quality.limits import load_limits, verdicts
from core_engine.quality.model import PagedModel
from core_engine.quality.needles import NeedleReport
from core_engine.quality.report import Report
from core_engine.quality.texts import default_text
from tests.core_engine.quality.faulty import ShiftedKeyScales, bad_scale, decoder, int8_model, zeroed_channel

pytestmark = pytest.mark.weights
LENGTH, NUM_SEQUENCES = 512, 4
HIDDEN_BELOW = 0.02  # relative change of mean NLL
FAULTS = ("bad scale", "zeroed outlier channel", "KV scale off by one")
UNTOUCHED = GreedyReport(num_tokens=64, lengths=(64,), mean_kl=0.0, worst_percent_kl=0.0, confident_flips=0.0)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    token_ids = Tokenizer.from_gguf(default_model_path()).encode(default_text().content)
    sequences = [token_ids[i * LENGTH : (i + 1) * LENGTH] for i in range(NUM_SEQUENCES)]
    reference = load_decoder(default_model_path(), Dials("float32", kernel="reference")).decoder
    model = int8_model()
    candidates = {
        "sound": PagedModel(decoder(model), LENGTH),
        "bad scale": PagedModel(bad_scale(model, layer=3, row=100, group=5, factor=16), LENGTH),
        # what reacts to a single token in this channel is the largest activation of the layer
        "zeroed outlier channel": PagedModel(zeroed_channel(model, layer=9, channel=200), LENGTH),
        "KV scale off by one": PagedModel(ShiftedKeyScales(model, layer=20), LENGTH, chunk=16),
    }
    return compare_all(PagedModel(reference, LENGTH), candidates, sequences)


def failed(report: Report) -> set[str]:
    """The limits that are passed by what was measured on tokens alone."""
    found = Findings(report, NeedleReport(()), UNTOUCHED)
    return {each.name for each in verdicts(found, load_limits("int8")) if not each.holds}


def test_the_sound_model_is_within_every_limit(reports: dict[str, Report]) -> None:
    assert failed(reports["sound"]) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_mean_nll_hides_is_past_a_limit_on_the_mean_and_one_on_the_tail(
    reports: dict[str, Report], fault: str
) -> None:
    assert abs(reports[fault].nll_change) < HIDDEN_BELOW
    assert "nll_change" not in failed(reports[fault])
    assert {"mean_kl", "worst_decile_kl", "tail_ratio"} <= failed(reports[fault])
