"""What ends a job before its end. All but the first leave it resumable: the same command goes on where it stopped.

HeadraceError
├── ConfigurationError
│   └── InputFileError     the input is absent, of an unknown format, or cannot be read
├── InvalidRequest
│   └── JobChanged         this job id was begun with another input, predictor or parameters
├── JobTakenOver           a later runner has the job now
├── ModelFault             the model failed on one row; tried again, then the row is bad
└── Unavailable
    └── JobStopped         engine or store stayed away for longer than the job waits
"""

from __future__ import annotations

from core_engine.errors import ConfigurationError, HeadraceError, InvalidRequest, Unavailable


class InputFileError(ConfigurationError):
    code = "input_file_error"


class JobChanged(InvalidRequest):
    status = 409
    code = "job_changed"


class JobTakenOver(HeadraceError):
    status = 409
    code = "job_taken_over"


class ModelFault(HeadraceError):
    code = "model_fault"


class JobStopped(Unavailable):
    code = "job_stopped"
