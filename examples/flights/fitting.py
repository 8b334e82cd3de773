"""The three rungs of delay_risk, fitted on the same rows: torch scorer, ONNX student, prior. Seeded throughout."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from core_engine.contracts import entity_key
from core_engine.errors import ConfigurationError
from core_engine.predictors.declaration import Artifact, Column
from core_engine.scoring.artifact import write_artifact
from core_engine.scoring.torch_scorer import TabularMLP, TabularSpec, save_scorer
from examples.flights.predictors import SEGMENT
from examples.flights.training import Rows

# One thread each: at these sizes a second one gains nothing for the scorer (4.2 s against 4.5 s, batch 1024, 218,000
# rows, 6 epochs) and 2 s for the student, but beside a busy neighbour two that wait for each other took 3 to 20 times
# as long.
NUM_THREADS = 1
SEED = 20130201
ABSENT_SHARE = 0.03  # of training rows lose each view, so that a lost read is nothing new to model and student
NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 6, 1024, 6e-3, 0.3
STUDENT = {
    "objective": "binary",
    "num_leaves": 15,
    "learning_rate": 0.05,
    "min_child_samples": 200,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "num_threads": NUM_THREADS,
    "seed": SEED,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}
STUDENT_TREES = 200
SHRINKAGE = 50.0  # flights' worth of the carrier's own rate in each of its hours

OnProgress = Callable[[int, int], None]  # steps done, steps in all


def check_extra() -> None:
    """Raises ConfigurationError where the demo extra, with which the student is trained, is not installed."""
    lacking = [name for name in ("lightgbm", "onnxmltools") if importlib.util.find_spec(name) is None]
    if lacking:
        raise ConfigurationError(
            f"the flights example trains with {' and '.join(lacking)}, not installed: pip install 'headrace[demo]'"
        )


def with_absences(rows: Rows, columns: Sequence[Column], share: float = ABSENT_SHARE) -> Rows:
    """A copy of `rows` in which each view is absent from `share` of the rows, independently of the others."""
    matrix, rng = rows.matrix.copy(), np.random.default_rng(SEED)
    for view in sorted({c.source.split(".")[0] for c in columns if "." in c.source}):
        lost = np.flatnonzero(rng.random(len(matrix)) < share)
        own = [i for i, c in enumerate(columns) if c.source.startswith(f"{view}.")]
        matrix[lost[:, None], own] = np.nan
    return Rows(matrix, rows.late, rows.day)


def fit_scorer(
    rows: Rows, columns: Sequence[Column], path: Path, on_progress: OnProgress, num_epochs: int = NUM_EPOCHS
) -> Artifact:
    """Train the tabular_mlp with AdamW under one learning-rate cycle and save it at `path`."""
    with _few_threads(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = TabularMLP(TabularSpec.of(columns, embedding_dim=4))
        _standardise(module, rows.matrix)
        _train(module, torch.from_numpy(rows.matrix), torch.from_numpy(rows.late).float(), on_progress, num_epochs)
    return save_scorer(path, module)


@contextmanager
def _few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _standardise(module: TabularMLP, matrix: npt.NDArray[np.float32]) -> None:
    """Mean and standard deviation of what is present, in float64; a column without spread is left as it is."""
    numbers = matrix[:, module.spec.numeric].astype(np.float64)
    is_present = ~np.isnan(numbers)
    count = np.maximum(is_present.sum(axis=0), 1)
    mean = np.where(is_present, numbers, 0.0).sum(axis=0) / count
    variance = np.square(np.where(is_present, numbers - mean, 0.0)).sum(axis=0) / count
    module.mean.copy_(torch.from_numpy(mean))
    module.std.copy_(torch.from_numpy(np.where(variance > 0, np.sqrt(variance), 1.0)))


def _train(module: TabularMLP, matrix: Tensor, late: Tensor, on_progress: OnProgress, num_epochs: int) -> None:
    steps_per_epoch = -(-len(matrix) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=num_epochs * steps_per_epoch)
    for epoch in range(num_epochs):
        for batch in torch.split(torch.randperm(len(matrix)), BATCH_SIZE):
            loss = binary_cross_entropy_with_logits(module(matrix[batch]), late[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        on_progress(epoch + 1, num_epochs)


def fit_student(rows: Rows, path: Path, num_trees: int = STUDENT_TREES) -> Artifact:
    """Gradient boosting as ONNX.

    Categories go in as plain numbers: the ONNX form of a categorical split is many times larger.
    """
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    booster = on_float32(fit_booster(rows, num_trees))
    inputs = [("features", FloatTensorType([None, rows.matrix.shape[1]]))]
    model = convert_lightgbm(booster, name="student", initial_types=inputs, zipmap=False)
    return write_artifact(path, model.SerializeToString(deterministic=True))


def fit_booster(rows: Rows, num_trees: int = STUDENT_TREES) -> Any:
    import lightgbm

    return lightgbm.train(STUDENT, lightgbm.Dataset(rows.matrix, rows.late.astype(np.float32)), num_trees)


def on_float32(booster: Any) -> Any:
    """The same trees with every threshold at the largest float32 not above it.

    For a float32 x nothing changes: x <= t exactly where x <= that number. But ONNX keeps thresholds as float32, and
    rounded to the nearest one some t would rise to an x that lay above it: one row in 4,131 then took another branch.
    """
    import lightgbm

    lines = booster.model_to_string().splitlines()
    kept = [_floored(line) for line in lines if not line.startswith("tree_sizes=")]  # byte counts that no longer hold
    return lightgbm.Booster(model_str="\n".join(kept) + "\n")


def _floored(line: str) -> str:
    name, _, values = line.partition("=")
    if name != "threshold" or not values:
        return line
    exact = np.array(values.split(), dtype=np.float64)
    nearest = exact.astype(np.float32)
    floored = np.where(nearest > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    return f"{name}={' '.join(repr(float(value)) for value in floored)}"


def fit_prior(rows: Rows, columns: Sequence[Column], path: Path) -> tuple[Artifact, float]:
    """Late share by carrier and hour, drawn to the carrier's own share where flights are few; and the share of all."""
    names = [c.name for c in columns]
    carrier_column, hour_column = (names.index(name) for name in SEGMENT)
    values = columns[carrier_column].values
    carrier = rows.matrix[:, carrier_column].astype(np.int64)
    segment = carrier * 24 + rows.matrix[:, hour_column].astype(np.int64)  # a cast floors: hours are not negative
    fallback = float(rows.late.mean())
    by_carrier = _shrunk(carrier, rows.late, len(values), np.full(len(values), fallback))
    by_segment = _shrunk(segment, rows.late, len(values) * 24, np.repeat(by_carrier, 24))
    seen = np.unique(segment).tolist()
    rates = {entity_key(values[s // 24], s % 24): round(float(by_segment[s]), 6) for s in seen}
    return write_artifact(path, msgspec.json.encode(rates, order="deterministic")), fallback


def _shrunk(
    group: npt.NDArray[np.int64], late: npt.NDArray[np.bool_], num_groups: int, towards: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    count = np.bincount(group, minlength=num_groups)
    rate: npt.NDArray[np.float64] = (np.bincount(group, late, num_groups) + SHRINKAGE * towards) / (count + SHRINKAGE)
    return rate
