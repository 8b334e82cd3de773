"""CTranslate2 in int8, in static batches: it has no continuous batching. The model is its own converted folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2
from peer_loop import Job, Peer, serve


class CTranslate2(Peer):
    version = ctranslate2.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        self._vocabulary = json.loads((Path(settings["model"]) / "vocabulary.json").read_text())
        self._generator = ctranslate2.Generator(
            settings["model"],
            device="cpu",
            compute_type="int8_float32",
            inter_threads=1,
            intra_threads=settings["threads"],
        )

    def run(self, jobs: list[Job], concurrency: int) -> int:
        for first in range(0, len(jobs), concurrency):
            batch = jobs[first : first + concurrency]
            most = max(job.max_tokens for job in batch)
            outputs = self._generator.generate_batch(
                [[self._vocabulary[token] for token in job.prompt] for job in batch],
                beam_size=1,
                sampling_topk=1,
                min_length=most,
                max_length=most,
                end_token=[],
                include_prompt_in_result=False,
                max_batch_size=concurrency,
            )
            shortest = min(len(output.sequences_ids[0]) for output in outputs)
            if shortest < most - 1:
                raise RuntimeError(f"{shortest} tokens were made, expected {most}")
        return sum(job.max_tokens for job in jobs)


if __name__ == "__main__":
    serve(CTranslate2)
