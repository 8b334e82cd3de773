"""OpenVINO GenAI on the CPU from a GGUF file: its own continuous batching, stepped in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from peer_loop import Job, Peer, serve


class OpenVino(Peer):
    version = genai.__version__

    def __init__(self, settings: dict[str, Any]) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = settings["kv_gib"]
        scheduling.max_num_seqs = settings["max_concurrency"]
        scheduling.max_num_batched_tokens = 2048
        scheduling.dynamic_split_fuse = True
        scheduling.enable_prefix_caching = settings["prefix_cache"]
        properties = {"INFERENCE_NUM_THREADS": settings["threads"]}
        self._pipe = genai.ContinuousBatchingPipeline(settings["model"], scheduling, "CPU", properties)
        self._count = 0

    def run(self, jobs: list[Job], concurrency: int) -> int:
        pending, live, made = list(jobs), list[Any](), 0
        while pending or live:
            while pending and len(live) < concurrency:
                live.append(self._add(pending.pop(0)))
            self._pipe.step()
            ended = [each for each in live if each.get_status() != genai.GenerationStatus.RUNNING]
            live = [each for each in live if each not in ended]
            made += sum(len(output.generated_ids) for handle in ended for output in handle.read_all())
        return made

    def _add(self, job: Job) -> Any:
        self._count += 1
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = job.max_tokens
        config.ignore_eos, config.do_sample = True, False
        prompt = openvino.Tensor(np.array([job.prompt], dtype=np.int64))
        return self._pipe.add_request(self._count, prompt, config)


if __name__ == "__main__":
    serve(OpenVino)
