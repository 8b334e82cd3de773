from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from core_engine.errors import InvalidRequest, ModelFileError
from core_engine.predictors.declaration import Artifact, Column, ColumnKind
from core_engine.scoring.artifact import write_artifact
from core_engine.scoring.torch_scorer import (
    MAX_DEVIATIONS,
    METADATA_KEY,
    TabularMLP,
    TabularSpec,
    TorchScorerModel,
    load_scorer,
    save_scorer,
)

COLUMNS = (
    Column(name="carrier", kind=ColumnKind.CATEGORY, source="carrier", values=("AA", "UA", "DL")),
    Column(name="hour", kind=ColumnKind.HOUR, source="departure"),
    Column(name="weekday", kind=ColumnKind.WEEKDAY, source="departure"),
    Column(name="wind", kind=ColumnKind.NUMERIC, source="weather.wind"),
)
SPEC = TabularSpec.of(COLUMNS)
ROW = np.array([1, 17.5, 4, 9], dtype=np.float32)
NAN = float("nan")


def scorer_module(seed: int = 0) -> TabularMLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = TabularMLP(SPEC)
    module.mean.copy_(torch.tensor([12.0, 10.0]))
    module.std.copy_(torch.tensor([5.0, 4.0]))
    return module


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    return save_scorer(tmp_path / "scorer.safetensors", scorer_module())


@pytest.fixture
def scorer(artifact: Artifact) -> TorchScorerModel:
    return load_scorer(artifact.path, artifact.sha256)


def score(scorer: TorchScorerModel, *row: float) -> float:
    return float(scorer.score(np.array([row], dtype=np.float32))[0])


class TestSpec:
    def test_categories_and_weekdays_are_embedded_all_else_is_a_number(self) -> None:
        assert (SPEC.numeric, SPEC.categories, SPEC.cardinality) == ((1, 3), (0, 2), (3, 7))
        assert SPEC.num_features == 4


class TestScore:
    def test_probabilities_are_those_of_the_saved_module(self, scorer: TorchScorerModel) -> None:
        rows = np.array([ROW, [0, 6, 0, NAN]], dtype=np.float32)
        with torch.inference_mode():
            expected = scorer_module()(torch.from_numpy(rows)).sigmoid().numpy()
        scores = scorer.score(rows)
        np.testing.assert_array_equal(scores, expected)
        assert scores.dtype == np.float32
        assert scores.shape == (2,)

    def test_the_architecture_is_the_documented_one(self, scorer: TorchScorerModel) -> None:
        """Against the formula written out in NumPy, float64."""
        state = {name: tensor.double().numpy() for name, tensor in scorer_module().state_dict().items()}

        def linear(x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
            return np.asarray(x @ state[f"{name}.weight"].T + state[f"{name}.bias"])

        def silu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return np.asarray(x / (1 + np.exp(-x)))

        numbers = [(17.5 - 12) / 5, 0.0, 0.0, 1.0]  # standardised, then is-missing: the wind is absent
        unknown = state["embeddings.0.weight"][3]  # the row behind the last value
        x = np.concatenate([numbers, unknown, state["embeddings.1.weight"][4]])
        logit = linear(silu(linear(silu(linear(x, "hidden_1")), "hidden_2")), "head")[0]
        assert score(scorer, -1, 17.5, 4, NAN) == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-5)

    def test_missing_is_not_the_mean(self, scorer: TorchScorerModel) -> None:
        assert score(scorer, 1, 12, 4, 10) != score(scorer, 1, 12, 4, NAN)

    @pytest.mark.parametrize("index", [-1, -7, 3, 99, NAN])
    def test_every_index_outside_the_values_is_unknown(self, scorer: TorchScorerModel, index: float) -> None:
        assert score(scorer, index, 17.5, 4, 9) == score(scorer, -1, 17.5, 4, 9)

    def test_numbers_are_cut_at_the_declared_deviations(self, scorer: TorchScorerModel) -> None:
        at_the_cut = 10 + MAX_DEVIATIONS * 4
        assert score(scorer, 1, 17.5, 4, 3e38) == score(scorer, 1, 17.5, 4, at_the_cut)

    def test_a_row_of_nothing_has_an_answer(self, scorer: TorchScorerModel) -> None:
        assert 0 < score(scorer, NAN, NAN, NAN, NAN) < 1

    def test_no_rows(self, scorer: TorchScorerModel) -> None:
        assert scorer.score(np.zeros((0, 4), dtype=np.float32)).shape == (0,)

    def test_rows_out_of_a_message_are_taken_as_they_are(self, scorer: TorchScorerModel) -> None:
        """Read-only memory, which torch warns about; warnings are errors here."""
        rows = np.frombuffer(ROW.tobytes() * 3, dtype="<f4").reshape(3, 4)
        assert scorer.score(rows).tolist() == [score(scorer, *ROW.tolist())] * 3

    def test_the_rows_are_not_changed(self, scorer: TorchScorerModel) -> None:
        rows = np.array([[5, NAN, -1, 3e38]], dtype=np.float32)
        before = rows.copy()
        scorer.score(rows)
        np.testing.assert_array_equal(rows, before)

    @settings(max_examples=25, deadline=None)
    @given(
        num_rows=st.sampled_from([1, 2, 3, 7, 8, 17, 64, 129]),
        place=st.integers(0, 128),
        seed=st.integers(0, 2**16),
    )
    def test_a_row_does_not_depend_on_the_rows_beside_it(self, num_rows: int, place: int, seed: int) -> None:
        scorer = TorchScorerModel(scorer_module(), torch.device("cpu"))
        rows = np.random.default_rng(seed).normal(10, 20, (num_rows, 4)).astype(np.float32)
        rows[place % num_rows] = ROW
        together = scorer.score(rows)[place % num_rows]
        np.testing.assert_allclose(together, score(scorer, *ROW.tolist()), rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        "rows", [np.zeros(4, np.float32), np.zeros((1, 3), np.float32), np.zeros((1, 4), np.float64)]
    )
    def test_another_shape_or_type_is_refused(self, scorer: TorchScorerModel, rows: npt.NDArray[np.float32]) -> None:
        with pytest.raises(InvalidRequest, match=r"expects float32 \[num_rows, 4\]"):
            scorer.score(rows)


class TestFiles:
    def test_the_same_weights_give_the_same_bytes(self, tmp_path: Path, artifact: Artifact) -> None:
        assert save_scorer(tmp_path / "again.safetensors", scorer_module()).sha256 == artifact.sha256
        assert save_scorer(tmp_path / "other.safetensors", scorer_module(1)).sha256 != artifact.sha256

    def test_another_digest_is_refused(self, artifact: Artifact) -> None:
        with pytest.raises(ModelFileError, match="SHA-256"):
            load_scorer(artifact.path, "0" * 64)

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match="cannot be read"):
            load_scorer(tmp_path / "absent", "0" * 64)

    @pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
    def test_a_truncated_file_is_refused_in_one_sentence(self, artifact: Artifact, size: int) -> None:
        refused(artifact, Path(artifact.path).read_bytes()[:size], "is not a safetensors file")

    def test_a_pickle_is_refused_and_not_run(self, artifact: Artifact) -> None:
        refused(artifact, pickle.dumps(scorer_module().state_dict()), "is not a safetensors file")

    @pytest.mark.parametrize("described", ['{"architecture": "tabnet"}', "{}", "[]", None])
    def test_an_unknown_architecture_is_refused_and_the_known_one_named(
        self, artifact: Artifact, described: str | None
    ) -> None:
        metadata = {} if described is None else {METADATA_KEY: described}
        refused(artifact, save(scorer_module().state_dict(), metadata), r"architecture '\w+'; known: tabular_mlp")

    def test_a_description_that_is_no_json_is_refused(self, artifact: Artifact) -> None:
        refused(artifact, save(scorer_module().state_dict(), {METADATA_KEY: "{"}), "is not a safetensors file")

    @pytest.mark.parametrize(
        "change",
        [
            {"hidden": [64, 16]},  # the tensors have other sizes
            {"hidden": [0, 32]},
            {"numeric": [1, 1]},
            {"cardinality": [3]},
            {"cardinality": [3, -7]},
            {"colour": "red"},
            {"numeric": None},
        ],
    )
    def test_sizes_that_do_not_fit_are_refused(self, artifact: Artifact, change: dict[str, object]) -> None:
        spec = {"numeric": [1, 3], "categories": [0, 2], "cardinality": [3, 7], **change}
        refused(artifact, save(scorer_module().state_dict(), metadata_of(spec)), "is not a tabular_mlp of the sizes")

    def test_no_sizes_are_refused(self, artifact: Artifact) -> None:
        refused(artifact, save(scorer_module().state_dict(), metadata_of(None)), "is not a tabular_mlp of the sizes")

    def test_a_lacking_tensor_is_refused(self, artifact: Artifact) -> None:
        state = scorer_module().state_dict()
        del state["head.bias"]
        spec: dict[str, object] = {"numeric": [1, 3], "categories": [0, 2], "cardinality": [3, 7]}
        refused(artifact, save(state, metadata_of(spec)), "is not a tabular_mlp of the sizes")


def metadata_of(spec: dict[str, object] | None) -> dict[str, str]:
    return {METADATA_KEY: json.dumps({"architecture": "tabular_mlp", "spec": spec})}


def refused(artifact: Artifact, data: bytes, match: str) -> None:
    changed = write_artifact(artifact.path, data)
    with pytest.raises(ModelFileError, match=match) as caught:
        load_scorer(changed.path, changed.sha256)
    assert "\n" not in str(caught.value)
