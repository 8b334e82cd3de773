"""JSON schemas as masks over the vocabulary: compiled off the engine's thread, applied in it.

A schema is compiled once and kept for the next request that brings the same one. What a sequence may say next depends
on its completion alone, so a pre-empted one needs nothing but its tokens. Compiling and masks are llguidance's.

JSON comes out as `json.dumps` writes it by default (`", "`, `": "`, no other white space): a model that is led into
white space without end would use up its tokens there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from core_engine.errors import EngineRefused, InvalidRequest, ModelFileError
from core_engine.llm.draws import Row
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_plan import NO_TOKENS
from core_engine.llm.tokenizer import Tokenizer

MAX_PENDING = 64  # schemas that wait for their compiler
MAX_COMPILED = 128  # schemas kept; the one asked for longest ago goes first
FORM = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": False}
# One mask may take about 4 ms at the most (llguidance: 14,000 of lexer fuel a millisecond): it holds up everybody.
LIMITS = llguidance.LLParserLimits(step_lexer_fuel=50_000, step_max_items=50_000, verbose_errors=False)


class GrammarState:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_consumed = 0
        self._bitmask = allocate_token_bitmask(1, vocab_size)
        self._vocab_size = vocab_size

    def allowed(self, completion: list[int]) -> NDArray[np.bool_]:
        """Which tokens may follow `completion`, [vocab]; once the JSON text is complete, only eos.

        Each call's completion must begin with the last one's.

        Raises:
            InvalidRequest: the schema makes this step too large, or the completion is not one that it accepts.
        """
        self._matcher.consume_tokens(completion[self._num_consumed :])
        self._num_consumed = len(completion)
        if not self._matcher.is_error():
            fill_next_token_bitmask(self._matcher, self._bitmask)
        if self._matcher.is_error():
            raise refused(self._matcher.get_error())
        return np.unpackbits(self._bitmask.view(np.uint8)[0], count=self._vocab_size, bitorder="little").view(np.bool_)

    def num_allowed(self, completion: list[int], draft: list[int]) -> int:
        """How many tokens of `draft`, from the first on, may follow `completion`. Changes nothing."""
        self._matcher.consume_tokens(completion[self._num_consumed :])
        self._num_consumed = len(completion)
        return 0 if self._matcher.is_error() else int(self._matcher.validate_tokens(draft))

    def apply(self, logits: Row, sequence: Sequence, ahead: list[int] = NO_TOKENS) -> None:
        """Mask one row of logits [vocab] in place: that of the token after the completion and the tokens `ahead`.

        Those ahead are certain to be the completion's next ones. Raises what `allowed` raises.
        """
        logits[~self.allowed(sequence.token_ids[sequence.num_prompt_tokens :] + ahead)] = -np.inf


@dataclass(frozen=True, slots=True)
class _Compiling:
    """`outcome` is a matcher at the beginning of the grammar, or why there is none."""

    outcome: Future[Any | str]
    since_s: float


class Grammars:
    """The schemas of one engine. All methods are for the engine's thread; the compilers are threads of its own.

    `load_tokenizer` is called once, by a compiler, at the first schema. `vocab_size` is that of the model's logits,
    `eos_token_ids` are those that may end a complete text. A schema that is not compiled after `limit_s` is refused.
    """

    def __init__(
        self,
        load_tokenizer: Callable[[], Tokenizer],
        vocab_size: int,
        eos_token_ids: frozenset[int],
        *,
        limit_s: float = 10.0,
        num_threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_tokenizer = load_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._limit_s = limit_s
        self._clock = clock
        self._compilers = ThreadPoolExecutor(num_threads, thread_name_prefix="grammar")
        self._vocabulary: Any = None
        self._loading = threading.Lock()
        self._known: dict[str, _Compiling] = {}  # in the order of last use
        self._watched: list[Sequence] = []

    def submit(self, schema: str) -> None:
        """Begin to compile a schema, unless it is known. Raises `EngineRefused` if too many wait already."""
        if schema not in self._known and not self._has_room:
            raise EngineRefused(f"{MAX_PENDING} JSON schemas wait to be compiled")
        self._use(schema)

    def watch(self, sequence: Sequence) -> None:
        """Name it among the `refused`, should its schema be."""
        if sequence.request.sampling.json_schema is not None:
            self._watched.append(sequence)

    def refused(self) -> list[tuple[Sequence, InvalidRequest]]:
        """Watched sequences whose schema has been refused since the last call, and why; they end now."""
        ready = [s for s in self._watched if s.finish_reason is not None or self.is_ready(s)]
        self._watched = [s for s in self._watched if s not in ready] if ready else self._watched
        errors = [(s, self.error(s)) for s in ready if s.finish_reason is None]
        return [(sequence, error) for sequence, error in errors if error is not None]

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether it waits for no compiler: it has no schema, or its schema is compiled, or refused (see `error`)."""
        schema = sequence.request.sampling.json_schema
        if schema is None:
            return True
        if schema not in self._known:  # it made room for others meanwhile
            if not self._has_room:
                return False
            self._use(schema)
        return self._known[schema].outcome.done() or self._is_late(schema)

    def error(self, sequence: Sequence) -> InvalidRequest | None:
        """Why a sequence that is ready cannot run: its schema was refused by the compiler, or takes too long."""
        schema = sequence.request.sampling.json_schema
        if schema is None or not self.is_ready(sequence):
            return None
        entry = self._known[schema]
        if not entry.outcome.done():
            return refused(f"it is not compiled after {self._limit_s:g} s")
        outcome = entry.outcome.result()
        return refused(outcome) if isinstance(outcome, str) else None

    def state(self, schema: str) -> GrammarState:
        """A state of its own at the beginning of `schema`; waits for the compiler if it has to.

        Raises:
            InvalidRequest: the schema cannot be used.
        """
        self._use(schema)
        outcome = self._known[schema].outcome.result()
        if isinstance(outcome, str):
            raise refused(outcome)
        return GrammarState(outcome.deep_copy(), self._vocab_size)

    def close(self) -> None:
        """No schema is begun any more."""
        self._compilers.shutdown(wait=False, cancel_futures=True)

    @property
    def _has_room(self) -> bool:
        return sum(not each.outcome.done() for each in self._known.values()) < MAX_PENDING

    def _use(self, schema: str) -> None:
        """It is known from now on, and the last one to make room for others."""
        entry = self._known.pop(schema, None)
        if entry is None:
            entry = _Compiling(self._compilers.submit(self._compile, schema), self._clock())
        self._known[schema] = entry
        if len(self._known) > MAX_COMPILED:
            del self._known[next(each for each, known in self._known.items() if known.outcome.done())]

    def _is_late(self, schema: str) -> bool:
        return self._clock() - self._known[schema].since_s > self._limit_s

    def _compile(self, schema: str) -> Any | str:
        """In a compiler's thread. A first mask is part of it: it shows whether a step is within its limits."""
        try:
            with self._loading:
                if self._vocabulary is None:
                    self._vocabulary = vocabulary(self._load_tokenizer(), self._vocab_size, self._eos_token_ids)
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=FORM)
        except (ValueError, ModelFileError) as error:  # it is not JSON, or there is no tokenizer
            return str(error)
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            first = matcher.deep_copy()
            first.compute_bitmask()
            matcher = first if first.is_error() else matcher
        return matcher.get_error() if matcher.is_error() else matcher


def vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> Any:
    """llguidance's view of a tokenizer: the exact bytes of each token; control tokens are by name and never text.

    `vocab_size` may be above the tokenizer's: a model's head is often padded, and such a token stands for nothing.
    """
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, eos_token_ids)),
        eos_token=sorted(eos_token_ids),
        slices=llguidance.LLTokenizer.json_slices(),
    )


class _Vocabulary:
    """The attributes that `TokenizerWrapper` asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(eos_token_ids)
        self.special_token_ids = sorted({*tokenizer.control, *range(tokenizer.vocab_size, vocab_size)})
        self.tokens = [
            tokenizer.tokens[i].encode() if i in tokenizer.control else token
            for i, token in enumerate(tokenizer.token_bytes)
        ]
        self.tokens += [f"<no token {i}>".encode() for i in range(tokenizer.vocab_size, vocab_size)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


def refused(reason: str) -> InvalidRequest:
    """The error of a schema that cannot be used; `reason` is the compiler's."""
    message = f"json_schema cannot be used: {reason.strip()}"
    return InvalidRequest(message, field="json_schema", expected="a JSON schema that the engine's compiler takes")
