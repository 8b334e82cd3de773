"""Rows of the comparison: how they are kept in a file over several commands, and the ratios that they make.

A ratio is always between two sides of one run, of one class of weights, and above one where ours is better by that
factor.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison.side import OURS, Label
from benchmarks.report import Row

CLASS_OF_HEADLINE = 8  # bits of the weights
HEADLINE = (
    *("decode_b1", "w1_c1", "w1_c8", "w1_c32", "prefill512", "prefill2048", "w3", "w3_score"),
    *("w2_ttft_p99", "w2_tpot_p50"),
)
DIVERGENCE = "kl"


@dataclass(frozen=True, slots=True)
class Result:
    """One measure on one side in one run. `against` names the peers' measure that it is compared with.

    `rss_mib` is the peak of the side's processes, 0 where it was not looked at; concurrency 0 is an open loop; `how`
    says what the value is, where that is not the same for all.
    """

    run: str  # when the command started
    measure: str
    unit: str
    label: Label
    values: tuple[float, ...]
    is_lower_better: bool = True
    against: str = ""
    concurrency: int = 1
    requests: int = 1
    rss_mib: float = 0.0
    how: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_ours(self) -> bool:
        return self.label.peer == OURS

    @property
    def bits(self) -> int:
        return self.label.bits


def read(path: Path) -> list[Result]:
    """The results kept in `path`; none if it is not there."""
    if not path.exists():
        return []
    kept = json.loads(path.read_text())["rows"]
    return [Result(**(row | {"label": Label(**row["label"]), "values": tuple(row["values"])})) for row in kept]


def merged(old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """Of the same measure on the same side the newest; and those of ours that a peer's were measured beside."""
    in_time = sorted([*old, *new], key=lambda each: each.run)
    newest = {(each.measure, each.label.name): each for each in in_time}.values()
    beside = {(each.run, each.measure) for each in newest if not each.is_ours}
    return [
        each
        for each in in_time
        if each in newest or (each.is_ours and (each.run, each.against or each.measure) in beside)
    ]


def ratio(ours: Result, theirs: Result) -> float:
    """By which factor ours is better."""
    return theirs.median / ours.median if ours.is_lower_better else ours.median / theirs.median


def pairs(results: Sequence[Result], bits: int | None = None) -> list[tuple[Result, Result]]:
    """Every result of ours with every peer's that it may be compared with: same run, same class (`bits` if given)."""
    ours = [each for each in results if each.is_ours and each.measure != DIVERGENCE]
    theirs = [each for each in results if not each.is_ours]
    return [
        (mine, other)
        for mine in ours
        for other in theirs
        if (mine.run, mine.bits, mine.against or mine.measure) == (other.run, other.bits, other.measure)
        and bits in (None, mine.bits)
    ]


def headline(results: Sequence[Result]) -> dict[str, float]:
    """`<measure>_ratio` against the best peer of the 8-bit class, then the 16-bit class, then KL to float32."""
    found: dict[str, float] = {}
    for bits, suffix in ((CLASS_OF_HEADLINE, ""), (16, "_16bit"), (4, "_4bit")):
        for mine, other in pairs(results, bits):
            name = f"{mine.measure}{suffix}_ratio"
            found[name] = min(found.get(name, float("inf")), ratio(mine, other))
    found |= _any_precision(results, "decode_b1")
    ordered = {f"{name}_ratio": found.pop(f"{name}_ratio") for name in HEADLINE if f"{name}_ratio" in found}
    return ordered | found | _divergences(results)


def _any_precision(results: Sequence[Result], measure: str) -> dict[str, float]:
    """Our fastest against the peers' fastest of a run, where more than one class of weights was measured."""
    given = [each for each in results if each.measure == measure]
    best: dict[str, Result] = {}
    for mine in (each for each in given if each.is_ours):
        if mine.run not in best or ratio(mine, best[mine.run]) > 1:
            best[mine.run] = mine
    ratios = [ratio(best[each.run], each) for each in given if not each.is_ours and each.run in best]
    return {f"{measure}_any_ratio": min(ratios)} if ratios and len({each.bits for each in given}) > 1 else {}


def _divergences(results: Sequence[Result]) -> dict[str, float]:
    of_class = [each for each in results if each.measure == DIVERGENCE and each.bits == CLASS_OF_HEADLINE]
    ours, theirs = ([each.median for each in of_class if each.is_ours is mine] for mine in (True, False))
    return {name: min(values) for name, values in (("kl_ours", ours), ("kl_peer", theirs)) if values}


def table(results: Sequence[Result]) -> list[Row]:
    """One row per result, ours first in each measure and class; KL beside every precision that has one."""
    divergence = {
        each.label.name: f"{each.median:.4f}" + marked(each) for each in results if each.measure == DIVERGENCE
    }
    order = list(dict.fromkeys(each.measure for each in results))
    return [
        {
            "measure": each.measure,
            "unit": each.unit,
            "conc.": each.concurrency or "open",
            "requests": each.requests,
            "side": each.label.name,
            "version": each.label.version.split("-")[0],
            "precision": each.label.precision,
            "KL to fp32": divergence.get(each.label.name, ""),
            "median": each.median,
            "of": len(each.values),
            "ours / theirs": compared(results, each),
            "RSS MiB": round(each.rss_mib) or "",
        }
        for each in sorted(results, key=lambda r: (order.index(r.measure), r.bits, not r.is_ours))
    ]


def marked(divergence: Result) -> str:
    return " emulated" if divergence.how.startswith("emulated") else ""


def compared(results: Sequence[Result], one: Result) -> str:
    """On a peer's row ours against it; on ours that no peer has, ours against the best peer's other measure."""
    if not one.is_ours:
        return ", ".join(
            f"{ratio(mine, other):.2f}" for mine, other in pairs(results) if other is one and not mine.against
        )
    against = [(ratio(mine, other), other) for mine, other in pairs(results) if mine is one and mine.against]
    if not against:
        return ""
    least, other = min(against, key=lambda each: each[0])
    return f"{least:.2f} ({other.measure} of {other.label.name})"


def stored(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [asdict(each) for each in results]
