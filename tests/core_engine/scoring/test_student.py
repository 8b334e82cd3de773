from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from core_engine.errors import InvalidRequest, ModelFileError
from core_engine.predictors.declaration import Artifact
from core_engine.scoring.artifact import write_artifact
from core_engine.scoring.student import OnnxStudent


def onnx_file(path: Path, output: str = "per_class", input_type: int = TensorProto.FLOAT) -> Artifact:
    """A student whose probability is column 0 of [num_rows, 2]: [1 - p, p] per class, or p alone."""
    rows = helper.make_tensor_value_info("rows", input_type, [None, 2])
    one_hot = np.array([[1], [0]], dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["rows", "column"], ["p"])]
    given = helper.make_tensor_value_info("p", TensorProto.FLOAT, [None, 1])
    if output == "per_class":
        nodes += [
            helper.make_node("Sub", ["one", "p"], ["q"]),
            helper.make_node("Concat", ["q", "p"], ["probabilities"], axis=1),
        ]
        given = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])
    constants = [
        helper.make_tensor("column", TensorProto.FLOAT, [2, 1], one_hot.ravel()),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
    ]
    graph = helper.make_graph(nodes, "student", [rows], [given], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return write_artifact(path, model.SerializeToString())


@pytest.mark.parametrize("output", ["per_class", "alone"])
def test_the_score_is_the_probability_of_the_label(tmp_path: Path, output: str) -> None:
    student = OnnxStudent(onnx_file(tmp_path / "student.onnx", output))
    assert student.num_features == 2
    assert student.score(np.array([0.25, 7], dtype=np.float32)) == 0.25
    rows = np.array([[0.25, 7], [0.5, 7]], dtype=np.float32)
    assert student.score_batch(rows).tolist() == [0.25, 0.5]


def test_the_score_is_a_python_float(tmp_path: Path) -> None:
    student = OnnxStudent(onnx_file(tmp_path / "student.onnx"))
    assert type(student.score(np.array([0.25, 7], dtype=np.float32))) is float


def test_another_number_of_features_is_refused(tmp_path: Path) -> None:
    student = OnnxStudent(onnx_file(tmp_path / "student.onnx"))
    with pytest.raises(InvalidRequest, match=r"features \[1, 3\]: the student expects float32 \[num_rows, 2\]"):
        student.score(np.zeros(3, dtype=np.float32))


def test_another_digest_is_refused(tmp_path: Path) -> None:
    artifact = onnx_file(tmp_path / "student.onnx")
    Path(artifact.path).write_bytes(b"another model")
    with pytest.raises(ModelFileError, match="SHA-256"):
        OnnxStudent(artifact)


@pytest.mark.parametrize("size", [0, 20, -3])
def test_a_broken_model_is_refused_in_one_sentence(tmp_path: Path, size: int) -> None:
    data = Path(onnx_file(tmp_path / "student.onnx").path).read_bytes()
    with pytest.raises(ModelFileError, match=r"student\.onnx is not an ONNX model") as caught:
        OnnxStudent(write_artifact(tmp_path / "student.onnx", data[:size]))
    assert "\n" not in str(caught.value)


def test_a_model_over_other_inputs_is_refused(tmp_path: Path) -> None:
    artifact = onnx_file(tmp_path / "student.onnx")
    model = onnx.load(artifact.path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "any"
    with pytest.raises(ModelFileError, match="input rows must be float"):
        OnnxStudent(write_artifact(tmp_path / "other.onnx", model.SerializeToString()))


def test_a_model_without_probabilities_is_refused(tmp_path: Path) -> None:
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None, 2])
    label = helper.make_tensor_value_info("label", TensorProto.INT64, [None])
    node = helper.make_node("ArgMax", ["rows"], ["label"], axis=1, keepdims=0)
    model = helper.make_model(
        helper.make_graph([node], "labels", [rows], [label]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    with pytest.raises(ModelFileError, match="output label must be float probabilities"):
        OnnxStudent(write_artifact(tmp_path / "labels.onnx", model.SerializeToString()))
