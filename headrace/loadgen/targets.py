"""Who is asked, and what: a route, the bodies sent to it in turn, and how its replies are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.loadgen.connections import Address
from headrace.loadgen.prompts import Prompt
from headrace.loadgen.replies import Clock, CompletionReader, PredictionReader, Reader, StreamReader

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
PREDICT: Final = "/v1/predict/"


@dataclass(frozen=True, slots=True)
class Target:
    """`backend` and `model` name it in the report. Bodies are sent in order, and again from the first when all were."""

    backend: str
    model: str
    endpoint: str
    bodies: Sequence[bytes]
    reader: Callable[[Clock], Reader]

    def requests(self, address: Address, headers: Mapping[str, str]) -> list[bytes]:
        """Each body as the bytes that go over the wire."""
        own = {
            "Host": str(address),
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        head = f"POST {address.path}{self.endpoint} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in own.items())
        return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in self.bodies]


@dataclass(frozen=True, slots=True)
class Generation:
    """How completions are asked for. `ignore_eos`: exactly the tokens asked for, of servers that know the field."""

    stream: bool = True
    ignore_eos: bool = False
    temperature: float = 0.0

    def fields(self, model: str, prompt: Prompt) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": model, "max_tokens": prompt.output_tokens, "temperature": self.temperature}
        if self.stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.ignore_eos:
            asked["ignore_eos"] = True
        return asked


def predict_target(predictor: str, bodies: Sequence[bytes]) -> Target:
    return Target("headrace", predictor, PREDICT + predictor, bodies, PredictionReader)


def chat_target(model: str, prompts: Sequence[Prompt], generation: Generation) -> Target:
    bodies = [
        _json({"messages": [{"role": "user", "content": each.text}], **generation.fields(model, each)})
        for each in prompts
    ]
    return Target("openai-chat", model, CHAT, bodies, StreamReader if generation.stream else CompletionReader)


def completions_target(model: str, prompts: Sequence[Prompt], generation: Generation) -> Target:
    bodies = [_json({"prompt": each.text, **generation.fields(model, each)}) for each in prompts]
    return Target("openai", model, COMPLETIONS, bodies, StreamReader if generation.stream else CompletionReader)


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()
