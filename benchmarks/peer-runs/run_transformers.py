"""transformers in bfloat16, as `mode` says: `static` batches of `generate`, or its `continuous` batching."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from peer_loop import Job, Peer, serve
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PADDING = 2
RESULT_S = 600.0


class Static(Peer):
    """Each batch runs as long as its longest request; what is made past a request's own end is not counted."""

    version = transformers.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        self.model = AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()

    def run(self, jobs: list[Job], concurrency: int) -> int:
        for first in range(0, len(jobs), concurrency):
            self._generate(jobs[first : first + concurrency])
        return sum(job.max_tokens for job in jobs)

    def _generate(self, batch: list[Job]) -> None:
        longest, most = max(len(job.prompt) for job in batch), max(job.max_tokens for job in batch)
        ids, mask = torch.full((len(batch), longest), PADDING), torch.zeros(len(batch), longest, dtype=torch.long)
        for row, job in enumerate(batch):
            ids[row, longest - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, longest - len(job.prompt) :] = 1
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=most,
                min_new_tokens=most,
                pad_token_id=PADDING,
            )
        if made.shape[1] != longest + most:
            raise RuntimeError(f"{made.shape[1] - longest} tokens were made, expected {most}")

    def save_logits(self, tokens: list[int], path: str) -> None:
        with torch.inference_mode():
            np.save(path, self.model(torch.tensor([tokens])).logits[0].float().numpy())


class Continuous(Static):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        num_blocks = settings["max_concurrency"] * 4
        self._manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=PADDING),
            continuous_batching_config=ContinuousBatchingConfig(max_batch_tokens=1024, num_blocks=num_blocks),
        )
        self._manager.start()

    def run(self, jobs: list[Job], concurrency: int) -> int:
        pending, live, made = list(jobs), set[str](), 0
        while pending or live:
            while pending and len(live) < concurrency:
                job = pending.pop(0)
                live.add(self._manager.add_request(job.prompt, max_new_tokens=job.max_tokens, eos_token_id=-1))
            result = self._manager.get_result(timeout=RESULT_S)
            if result is None:
                raise RuntimeError(f"no result within {RESULT_S:g} s")
            if result.is_finished() and result.request_id in live:
                live.remove(result.request_id)
                made += len(result.generated_tokens)
        return made


def start(settings: dict[str, Any]) -> Peer:
    return Continuous(settings) if settings["mode"] == "continuous" else Static(settings)


if __name__ == "__main__":
    serve(start)
