"""Composition root of the engine process: settings in, one `EngineServer` that runs until SIGTERM."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import structlog
import torch
import zmq
from sqlalchemy.exc import SQLAlchemyError

from core_engine.costs.meter import ReplicaMeter
from core_engine.costs.spool import Spool
from core_engine.errors import ConfigurationError, ModelFileError
from core_engine.llm.block_pool import BlockPool
from core_engine.llm.engine import Engine
from core_engine.llm.gguf_reader import default_model_path
from core_engine.llm.grammar import Grammars
from core_engine.llm.limits import PoolLimits, SchedulerLimits
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.model_decoder import AnyDecoder, Dials, load_decoder
from core_engine.llm.pacing import Objective
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.runner import Runner
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.scorers import ScorerHost
from core_engine.llm.server import EngineInfo, EngineServer
from core_engine.llm.speculation.synthetic import SyntheticAcceptance
from core_engine.llm.step_time import load_calibration
from core_engine.llm.tokenizer import Tokenizer
from core_engine.llm.weights_epoch import weights_epoch
from core_engine.metrics import Metrics
from core_engine.predictors.declaration import TorchScorer
from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.scoring.torch_scorer import load_scorer
from core_engine.settings import EngineSettings, PoolSettings, Settings
from headrace.heap import settle
from headrace.runtime import process_age_s
from headrace.speculation import build_speculation
from headrace.tracing import open_tracing

log = structlog.get_logger()


def run_engine(settings: Settings) -> None:
    """Serve one engine at `settings.engine.endpoint` until SIGTERM or SIGINT, then drain it; a second one ends it.

    Raises:
        ConfigurationError: a model file that cannot be loaded, or an endpoint that cannot be bound.
    """
    endpoint = settings.engine_endpoint
    os.nice(settings.engine.nice)  # before there are other threads: each has its own
    metrics = Metrics()
    spool, tracing = Spool(settings.spool_dir, "engine", metrics), open_tracing(settings.tracing, "engine", metrics)
    meter = ReplicaMeter(settings.engine.replica, settings.engine.kind, spool.write, age_s=process_age_s())
    torch.set_num_threads(settings.engine.num_threads or len(os.sched_getaffinity(0)))
    engine, info = build_engine(settings.engine)
    scorers = ScorerHost()
    load_registered(settings.database_url, scorers)
    server = EngineServer(engine, scorers, info, endpoint, load_scorer, meter, tracer=tracing.tracer)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        server.drain()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    settle()
    try:
        server.run()
    except zmq.ZMQError as error:
        raise ConfigurationError(f"HEADRACE_ENGINE__ENDPOINT = {endpoint}: cannot be bound: {error}") from None
    finally:
        tracing.close()
        spool.close()


def build_engine(settings: EngineSettings, synthetic: SyntheticAcceptance | None = None) -> tuple[Engine, EngineInfo]:
    """The engine of `settings`, its weights loaded and its KV cache allocated; `synthetic` is for benchmarks alone."""
    path = settings.model_path or default_model_path()
    dials = dials_of(settings)
    model = load_decoder(path, dials)
    config, eos = model.config, model.eos_token_ids
    num_blocks = _num_blocks(settings, model.decoder)
    context_tokens = min(settings.max_context_tokens, config.max_positions)
    blocks = BlockPool(num_blocks, settings.block_size)
    limits = SchedulerLimits(
        interactive=_limits(settings.interactive),
        bulk=_limits(settings.bulk),
        max_context_tokens=context_tokens,
        max_step_tokens=settings.max_step_tokens,
        max_step_s=settings.max_step_ms / 1e3,
        objective=Objective(settings.max_ttft_slowdown, settings.max_tpot_slowdown),
        tenant_weights=settings.tenant_weights,
    )
    step_time = load_calibration(settings.weights, settings.calibration)
    grammars = Grammars(lambda: Tokenizer.from_path(path), config.vocab_size, eos)
    grammars.submit("{}")  # the first schema loads the vocabulary: 0.9 s, in which others may be held up for 0.25 s
    runner = Runner(
        model.decoder, num_blocks, settings.block_size, eos_token_ids=eos, grammars=grammars, synthetic=synthetic
    )
    hasher = _hasher(settings, path, config) if settings.prefix_cache else None
    speculation = build_speculation(settings, dials, runner, context_tokens)
    scheduler = Scheduler(limits, blocks, step_time, hasher, grammars.is_ready, speculation=speculation)
    engine = Engine(scheduler, runner, eos)
    info = EngineInfo(
        settings.model_name,
        context_tokens,
        config.vocab_size,
        dials.precision,
        settings.heartbeat_s,
        settings.lease_s,
        settings.drain_s,
        settings.replica,
        settings.restarts.model_dump(),
    )
    return engine, info


def load_registered(database_url: str, scorers: ScorerHost) -> None:
    """Load the live torch scorers of the registry; one that cannot be loaded is named and left out.

    Doors ask again for what is missing, so an engine without a database still serves.
    """
    try:
        predictors = Registry(open_database(database_url)).view().live()
    except SQLAlchemyError as error:
        log.warning("registry_not_read", error=type(error).__name__)
        return
    for predictor in predictors:
        if not isinstance(predictor.model, TorchScorer):
            continue
        artifact = predictor.model.artifact
        try:
            scorers.put(predictor.id, load_scorer(Path(artifact.path), artifact.sha256))
        except ModelFileError as error:
            log.error("scorer_not_loaded", scorer=predictor.id, error=str(error))


def dials_of(settings: EngineSettings) -> Dials:
    return Dials(
        settings.weights,
        None if settings.kv == "model" else settings.kv,
        settings.kernel,
        settings.deterministic,
        settings.num_threads,
        settings.cpus,
        settings.block_size,
        settings.weights_cache,
    )


def _hasher(settings: EngineSettings, path: Path, config: ModelConfig) -> PrefixHasher:
    fixed_positions = config.rope.original_positions if config.rope.type == "dynamic" else None
    epoch = weights_epoch(path, dials_of(settings).precision)
    return PrefixHasher(settings.block_size, epoch, fixed_positions=fixed_positions)


def _limits(settings: PoolSettings) -> PoolLimits:
    return PoolLimits(**settings.model_dump())


def _num_blocks(settings: EngineSettings, decoder: AnyDecoder) -> int:
    block_bytes = decoder.block_bytes(settings.block_size)
    num_blocks = settings.kv_cache_bytes // block_bytes
    if num_blocks < 2:
        raise ConfigurationError(
            f"HEADRACE_ENGINE__KV_CACHE_BYTES = {settings.kv_cache_bytes}: holds {num_blocks} blocks, "
            f"expected at least {2 * block_bytes} bytes"
        )
    return num_blocks
