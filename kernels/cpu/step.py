"""The whole-step kernel from Python: its structs (src/step.h), packed weights, and calls that hold no GIL.

Everything that a struct points to is kept by the Python object that made it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kernels.cpu.build import load
from kernels.cpu.isa import Level
from kernels.cpu.memory import Arena
from kernels.linear import Weight
from kernels.quantise import GroupQuantised

F32, BF16, INT8, INT4 = range(4)
KV = {"bfloat16": 0, "int8": 1}
PARTS = ("products", "attention", "head", "other")
PANEL, INPUTS, LANES, TILE = 32, 64, 16, 16  # outputs, inputs and KV slots come in whole ones
ERROR_BYTES = 200
_P, _I = ctypes.c_void_p, ctypes.c_int32


class Linear(ctypes.Structure):
    _fields_ = [(name, _P) for name in ("codes", "scales", "minimums", "bias")] + [
        (name, _I) for name in ("weights", "n", "k", "n_pad", "k_pad", "group")
    ]


class Layer(ctypes.Structure):
    _fields_ = [(name, Linear) for name in ("qkv", "attn_out", "gate_up", "down")] + [
        (name, _P) for name in ("attn_norm", "ffn_norm", "qk_norm")
    ]


class Model(ctypes.Structure):
    _fields_ = [
        *((name, _I) for name in ("num_layers", "hidden", "intermediate", "num_heads", "num_kv_heads", "head_dim")),
        *((name, _I) for name in ("vocab", "sliding_window", "kv", "embedding_is_bf16")),
        ("rms_norm_eps", ctypes.c_float),
        ("layers", ctypes.POINTER(Layer)),
        ("head", Linear),
        ("final_norm", _P),
        ("embedding", _P),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        *((name, _I) for name in ("num_rows", "num_spans", "num_outputs", "block_size")),
        *((name, _P) for name in ("token_ids", "spans", "tables", "cos", "sin", "output_rows", "hidden", "cache")),
        ("layer_bytes", ctypes.c_int64),
    ]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step's rows: int32 arrays and float32 rotations, contiguous; `spans` rows are (row, num_rows, position, table).

    `table` is where in `tables` the span's block table begins.
    """

    token_ids: np.ndarray  # [num_rows]
    spans: np.ndarray  # [num_spans, 4]
    tables: np.ndarray
    cos: np.ndarray  # [num_rows, head_dim / 2]
    sin: np.ndarray
    output_rows: np.ndarray  # [num_outputs]


class Packed:
    """A weight in the kernel's layout, and the struct that describes it; what is large lies in `arena` (None: its own).

    `rows` names the canonical row of each output, -1 for none; without it output i is row i.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Weight,
        bias: torch.Tensor | None = None,
        rows: np.ndarray | None = None,
        arena: Arena | None = None,
    ) -> None:
        n, k = (len(rows) if rows is not None else weight.shape[0]), weight.shape[1]
        n_pad, k_pad = -(-n // PANEL) * PANEL, -(-k // INPUTS) * INPUTS
        order = None if rows is None else np.pad(rows, (0, n_pad - n), constant_values=-1).astype(np.int32)
        self._arena, self._kept = arena or Arena(), list[torch.Tensor]()
        self.struct = Linear(n=n, k=k, n_pad=n_pad, k_pad=k_pad)
        if bias is not None:
            self.struct.bias = self._keep(torch.nn.functional.pad(bias.float(), (0, n_pad - n)))
        given = None if order is None else _at(order)
        if isinstance(weight, GroupQuantised):
            self._pack_groups(library, weight, given)
        else:
            self._pack_floats(library, weight, given)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._kept)

    def _pack_groups(self, library: ctypes.CDLL, weight: GroupQuantised, order: _Pointer) -> None:
        struct, (n, k) = self.struct, weight.shape
        struct.weights, struct.group = (INT8 if weight.bits == 8 else INT4), weight.group
        struct.codes = self._empty(struct.n_pad * struct.k_pad * weight.bits // 8)
        per_group = 2 * struct.n_pad * (struct.k_pad // weight.group)
        struct.scales = self._empty(per_group)
        codes, scales = weight.codes.contiguous(), weight.scales.contiguous()
        if weight.bits == 8:
            library.hr_pack_int8(
                *_all(codes, scales), n, k, struct.n_pad, weight.group, order, _P(struct.codes), _P(struct.scales)
            )
            return
        minimums = None if weight.minimums is None else weight.minimums.contiguous()
        if minimums is not None:
            struct.minimums = self._empty(per_group)
        library.hr_pack_int4(
            *_all(codes, scales, minimums), n, k, struct.n_pad, weight.group, order,
            _P(struct.codes), _P(struct.scales), _P(struct.minimums),
        )  # fmt: skip

    def _pack_floats(self, library: ctypes.CDLL, weight: torch.Tensor, order: _Pointer) -> None:
        struct = self.struct
        is_bf16 = weight.dtype == torch.bfloat16
        struct.weights = BF16 if is_bf16 else F32
        struct.codes = self._empty(struct.n_pad * struct.k_pad * (2 if is_bf16 else 4))
        pack = library.hr_pack_bf16 if is_bf16 else library.hr_pack_f32
        values = (weight if is_bf16 else weight.float()).contiguous()
        pack(*_all(values), *weight.shape, struct.n_pad, order, _P(struct.codes))

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()

    def _empty(self, num_bytes: int) -> int:
        return self._keep(self._arena.take(num_bytes))


_Pointer = ctypes.c_void_p | None


class StepKernel:
    """A decoder behind the C ABI. One call at a time; `close` ends its threads."""

    def __init__(
        self, library: ctypes.CDLL, model: Model, kept: Sequence[object], num_threads: int, cpus: Sequence[int] = ()
    ) -> None:
        """`kept` is whatever `model` points to.

        Raises:
            ValueError: threads that cannot be started or pinned; the message says which.
        """
        self._library, self._model, self._kept = library, model, kept
        self._error = ctypes.create_string_buffer(ERROR_BYTES)
        pinned = (_I * len(cpus))(*cpus)
        self._decoder = library.hr_open(ctypes.byref(model), num_threads, pinned, len(cpus), self._error, ERROR_BYTES)
        if not self._decoder:
            raise ValueError(self._error.value.decode())

    def run(
        self, step: StepArrays, cache: torch.Tensor, block_size: int, hidden: torch.Tensor, pieces: Iterable[range]
    ) -> Iterable[None]:
        """Run the layers of each piece in turn, yielding after each; the last one fills `hidden` [num_outputs, hidden].

        `cache` is uint8 [num_layers, num_blocks, block_bytes].

        Raises:
            MemoryError: there is no room for the step's rows.
        """
        struct = Step(
            len(step.token_ids), len(step.spans), len(step.output_rows), block_size,
            *(_at(array) for array in (step.token_ids, step.spans, step.tables, step.cos, step.sin, step.output_rows)),
            hidden.data_ptr(), cache.data_ptr(), cache.stride(0),
        )  # fmt: skip
        for piece in pieces:
            self._check(self._library.hr_run(
                self._decoder, ctypes.byref(struct), piece.start, piece.stop, self._error, ERROR_BYTES
            ))  # fmt: skip
            yield

    def logits(self, hidden: torch.Tensor, token_ids: np.ndarray | None = None) -> torch.Tensor:
        """Float32 [num_rows, vocab], or [num_rows, num_tokens] for int32 `token_ids`; `hidden` float32, contiguous."""
        num_tokens = 0 if token_ids is None else len(token_ids)
        logits = torch.empty(len(hidden), self._model.vocab if token_ids is None else num_tokens)
        self._check(self._library.hr_logits(
            self._decoder, _P(hidden.data_ptr()), len(hidden), None if token_ids is None else _at(token_ids),
            num_tokens, _P(logits.data_ptr()), self._error, ERROR_BYTES,
        ))  # fmt: skip
        return logits

    def best(self, hidden: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Of each row the token of its largest logit, int32, and that logit, float32 [num_rows].

        NaN where one of the row's logits is not finite.
        """
        tokens, logits = np.empty(len(hidden), np.int32), np.empty(len(hidden), np.float32)
        self._check(self._library.hr_best(
            self._decoder, _P(hidden.data_ptr()), len(hidden), _at(tokens), _at(logits), self._error, ERROR_BYTES
        ))  # fmt: skip
        return tokens, logits

    def seconds(self) -> dict[str, float]:
        """Spent inside all calls so far, by part of the step."""
        found = (ctypes.c_double * len(PARTS))()
        self._library.hr_seconds(self._decoder, found)
        return dict(zip(PARTS, found, strict=True))

    def close(self) -> None:
        if self._decoder:
            self._library.hr_close(self._decoder)
            self._decoder = None

    def __del__(self) -> None:
        self.close()

    def _check(self, failed: int) -> None:
        if failed:
            raise MemoryError(f"a step could not be run: {self._error.value.decode()}")


def open_library(level: Level | None = None, folder: Path | None = None) -> ctypes.CDLL:
    """The kernels' library, built where it is not; raises `KernelUnavailable`."""
    return declared(load(level, folder))


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same, its functions' arguments and results declared."""
    library.hr_open.restype = _P
    library.hr_open.argtypes = [_P, _I, _P, _I, _P, _I]
    library.hr_close.restype = None
    library.hr_close.argtypes = [_P]
    library.hr_run.argtypes = [_P, _P, _I, _I, _P, _I]
    library.hr_logits.argtypes = [_P, _P, _I, _P, _I, _P, _P, _I]
    library.hr_best.argtypes = [_P, _P, _I, _P, _P, _P, _I]
    library.hr_seconds.restype = None
    library.hr_seconds.argtypes = [_P, _P]
    library.hr_kv_tile_bytes.restype = ctypes.c_int64
    library.hr_kv_tile_bytes.argtypes = [_I, _I, _I]
    for name, pointers, numbers in (("int8", 2, 4), ("int4", 3, 4), ("bf16", 1, 3), ("f32", 1, 3)):
        pack = getattr(library, f"hr_pack_{name}")
        pack.restype = None
        outputs = {"int8": 2, "int4": 3}.get(name, 1)
        pack.argtypes = [_P] * pointers + [_I] * numbers + [_P] * (1 + outputs)
    return library


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return _P(array.ctypes.data)


def _all(*tensors: torch.Tensor | None) -> list[ctypes.c_void_p]:
    return [_P(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
