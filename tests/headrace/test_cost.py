"""`headrace cost`: spools in a state folder become a bill on the screen, or one sentence that says why not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from core_engine.costs.facts import Fact
from core_engine.costs.report import CostReport
from core_engine.errors import ConfigurationError, InvalidRequest
from core_engine.settings import Settings
from headrace import cost
from tests.core_engine.costs.ledger import PRICES, at, caller, device, interval, write_spool
from tests.headrace.test_cli import headrace, sentence_of

FACTS: list[Fact] = [
    caller("a", 1.0),
    device("a", 0.5, 1.0, kv_block_s=25.0),
    interval(0, -4, 0, loading_s=4.0),
    interval(1, 0, 4, busy_s=0.5, free_block_s=25.0, overhead_s=0.25),
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write_spool(tmp_path / "state" / "spool", FACTS)
    return tmp_path / "state"


@pytest.fixture
def settings(state: Path, tmp_path: Path) -> Settings:
    (tmp_path / "prices.toml").write_text(PRICES)
    given = Settings(state_dir=state)
    return given.model_copy(update={"costs": given.costs.model_copy(update={"price_book": tmp_path / "prices.toml"})})


def shown(made: CostReport) -> str:
    console = Console(file=StringIO(), width=200)
    cost.show(made, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_command_loads_the_spools_and_prints_a_bill_that_closes(state: Path) -> None:
    done = headrace("cost", "report", state=state, COLUMNS="200")
    assert done.returncode == 0, done
    for words in ("delay", "(replicas)", "total", "unattributed 0.0000 % of it (limit 0.5 %): closes", "made up"):
        assert words in done.stdout


def test_json_holds_both_sides_as_exact_strings(state: Path, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    prices = {"HEADRACE_COSTS__PRICE_BOOK": str(tmp_path / "prices.toml")}
    done = headrace("cost", "report", "--json", "--by", "tenant", state=state, **prices)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["closes"], Decimal(told["left"]), Decimal(told["right"])) == (True, Decimal("10.25"), Decimal("10.25"))
    amounts = [Decimal(amount) for line in told["lines"] for amount in line["terms"].values()]
    assert sum(amounts) == Decimal(told["left"])
    assert told["by"] == ["tenant"]


def test_loading_is_told_and_done_once(state: Path) -> None:
    first, second = headrace("cost", "load", state=state), headrace("cost", "load", state=state)
    assert first.stdout == "4 facts from 1 spool files\n", first
    assert second.stdout == "0 facts from 1 spool files\n", second


def test_an_empty_ledger_is_one_sentence(tmp_path: Path) -> None:
    assert "the ledger is empty" in sentence_of(headrace("cost", "report", state=tmp_path / "state"))


def test_a_bill_that_does_not_close_says_so_and_fails(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", [interval(end=10.0, idle_s=5.0)])
    done = headrace("cost", "report", state=tmp_path, COLUMNS="200")
    assert done.returncode == 1
    assert "does NOT close" in done.stdout


def test_a_window_is_a_day_or_instants(settings: Settings) -> None:
    whole = cost.report(settings, by="path")
    assert (whole.from_at, whole.right) == (at(-4), Decimal("10.25"))
    assert cost.report(settings, begin="2026-03-01", end="2026-03-02", by="path").right == whole.right
    half = cost.report(settings, begin="2026-03-01T14:00:02+02:00", by="path")
    assert half.from_at == datetime(2026, 3, 1, 12, 0, 2, tzinfo=UTC)
    assert half.right == 2


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-03-01T12:00:00", "12"])
def test_a_window_s_bound_that_is_no_instant_is_named(settings: Settings, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--from = .*expected a day"):
        cost.report(settings, begin=text, by="path")


def test_the_screen_shows_every_term_line_and_note(settings: Settings) -> None:
    text = shown(cost.report(settings, by="path,predictor"))
    for words in ("device", "memory", "reads", "caller_cpu", "idle", "loading", "overhead", "unattributed"):
        assert words in text
    for words in ("online", "(idle, bulk pool)", "paid: replicas 8.000000 + reads 2.000000", "replica seconds: "):
        assert words in text
    assert "made up" not in text


def test_names_from_outside_are_printed_as_they_are(settings: Settings) -> None:
    write_spool(settings.spool_dir, [caller("b", predictor="[red]x[/blue]")], "door-1.jsonl")
    assert "[red]x[/blue]" in shown(cost.report(settings, by="predictor"))


def test_what_could_not_be_read_is_told(settings: Settings) -> None:
    path = settings.spool_dir / "door-9.jsonl"
    write_spool(path.parent, [], path.name)
    with path.open("ab") as file:
        file.write(b"noise\nhalf a li")
    console = Console(file=StringIO(), width=200)
    cost.show_loaded(cost.load(settings), console)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 lines could not be read" in told
    assert "door-9.jsonl: its last line is unfinished" in told
    assert "1 spool lines could not be read (table ledger_spool_faults)" in shown(cost.report(settings, by="path"))


def test_a_spool_that_cannot_be_opened_is_one_sentence(settings: Settings) -> None:
    (settings.spool_dir / "folder.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match=r"spool .*folder\.jsonl cannot be read"):
        cost.load(settings)
