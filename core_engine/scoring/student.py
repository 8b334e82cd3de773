"""The student rung: a small ONNX model over the same columns, on one thread of the calling process.

It must answer while the engine is away, so it shares nothing with it: neither torch nor a socket.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from core_engine.errors import InvalidRequest, ModelFileError
from core_engine.predictors.declaration import Artifact
from core_engine.scoring.artifact import read_artifact

_WARNINGS_OFF = 3  # onnxruntime's severity "error"
# Its exceptions share no base class but Exception.
_ORT_ERRORS = tuple(v for v in vars(ort_state).values() if isinstance(v, type) and issubclass(v, Exception))


class OnnxStudent:
    """A loaded student: input 0 is float32 [num_rows, num_features], the last output the probabilities.

    The probabilities are [num_rows] or, per class, [num_rows, 2], of which the second column is the label's.

    Raises:
        ModelFileError: unreadable, another digest, or not such a model.
    """

    def __init__(self, artifact: Artifact) -> None:
        data = read_artifact(artifact.path, artifact.sha256)
        try:
            self._session = ort.InferenceSession(data, _one_thread(), providers=["CPUExecutionProvider"])
        except _ORT_ERRORS as error:
            reason = str(error).splitlines()[0]
            raise ModelFileError(f"model file {artifact.path} is not an ONNX model: {reason}") from None
        taken, given = self._session.get_inputs()[0], self._session.get_outputs()[-1]
        if taken.type != "tensor(float)" or len(taken.shape) != 2 or not isinstance(taken.shape[1], int):
            raise ModelFileError(f"model file {artifact.path}: input {taken.name} must be float [rows, features]")
        if given.type != "tensor(float)":
            raise ModelFileError(f"model file {artifact.path}: output {given.name} must be float probabilities")
        self._input, self._output = taken.name, given.name
        self.num_features: int = taken.shape[1]

    def score(self, vector: npt.NDArray[np.float32]) -> float:
        """The probability of the label for one row, float32 [num_features]; NaN is absent."""
        return float(self.score_batch(vector.reshape(1, -1))[0])

    def score_batch(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Probabilities float32 [num_rows] of `rows` float32 [num_rows, num_features].

        Raises:
            InvalidRequest: another number of features.
        """
        if rows.ndim != 2 or rows.shape[1] != self.num_features:
            expected = f"float32 [num_rows, {self.num_features}]"
            message = f"features {list(rows.shape)}: the student expects {expected}"
            raise InvalidRequest(message, field="features", value=list(rows.shape), expected=expected)
        scores = np.asarray(self._session.run([self._output], {self._input: rows})[0], dtype=np.float32)
        return scores.reshape(len(rows), -1)[:, -1]


def _one_thread() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _WARNINGS_OFF
    # A spinning worker would take the core that the door's event loop needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
