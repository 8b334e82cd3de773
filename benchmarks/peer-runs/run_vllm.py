"""vLLM on the CPU, its engine stepped in this process: its own continuous batching and scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import vllm
from peer_loop import Job, Peer, serve
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind


class Vllm(Peer):
    version = vllm.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        self._count = 0
        self._llm = LLM(
            model=settings["model"],
            dtype="bfloat16",
            max_model_len=settings["context_tokens"],
            max_num_seqs=settings["max_concurrency"],
            max_num_batched_tokens=2048,
            enable_prefix_caching=settings["prefix_cache"],
        )
        self._engine = self._llm.llm_engine

    def run(self, jobs: list[Job], concurrency: int) -> int:
        pending, num_live, made = list(jobs), 0, 0
        while pending or num_live:
            while pending and num_live < concurrency:
                self._add(pending.pop(0))
                num_live += 1
            for output in self._engine.step():
                if output.finished:
                    num_live -= 1
                    made += len(output.outputs[0].token_ids)
        return made

    def _add(self, job: Job, prompt_logprobs: int | None = None) -> None:
        self._count += 1
        sampling = SamplingParams(
            temperature=0,
            max_tokens=job.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            prompt_logprobs=prompt_logprobs,
        )
        self._engine.add_request(str(self._count), {"prompt_token_ids": job.prompt}, sampling)

    def save_logits(self, tokens: list[int], path: str) -> None:
        """Asked for prompt log-probabilities, the model computes the logits of all positions: they are taken there."""
        [model] = self._llm.apply_model(lambda model: model)
        taken: list[torch.Tensor] = []
        compute = model.compute_logits

        def keep(*args: Any, **named: Any) -> Any:
            logits = compute(*args, **named)
            taken.append(logits.float().clone())
            return logits

        model.compute_logits = keep
        try:
            self._add(Job(tokens, 1), prompt_logprobs=1)
            while self._engine.has_unfinished_requests():
                self._engine.step()
        finally:
            model.compute_logits = compute
        rows = {len(each): each for each in taken}  # those of the prompt, and the sampler's, which is the last
        np.save(path, torch.cat((rows[len(tokens) - 1], rows[1])).numpy())


if __name__ == "__main__":
    serve(Vllm)
