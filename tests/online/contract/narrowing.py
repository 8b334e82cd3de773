"""The document with what only this door knows: names that exist, and sizes that its tiny model has. A body that fits is
then one that is answered, so that fuzzing reaches the engine and not only the 404."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests.core_engine.llm.tiny import CONFIG, EOS
from tests.core_engine.predictors.doubles import INPUTS

LARGEST_TOKEN = CONFIG.vocab_size - 1
TEXT = {"type": "string", "minLength": 1, "maxLength": 12, "pattern": "^[ -~]+$"}
TOKEN_IDS = {
    "type": "array",
    "minItems": 1,
    "maxItems": 12,
    "items": {"type": "integer", "minimum": EOS + 1, "maximum": LARGEST_TOKEN},
}
PROMPT = {
    "anyOf": [TEXT, TOKEN_IDS, {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf": [TEXT, TOKEN_IDS]}}]
}
BIASES = {
    "type": ["object", "null"],
    "maxProperties": 3,
    "patternProperties": {"^[1-8][0-9]$": {"type": "number", "minimum": -100, "maximum": 100}},
    "additionalProperties": False,
}
MAX_TOKENS = {"type": "integer", "minimum": 1, "maximum": 8}
FORMAT = {"type": "json_schema", "json_schema": {"name": "late", "schema": {"type": "boolean"}, "strict": True}}
DELAY = {
    "type": "object",
    "required": list(INPUTS),
    "additionalProperties": False,
    "properties": {
        "origin": {"enum": ["JFK", "LGA", "Zürich"[:4]]},
        "dest": {"type": "string", "minLength": 1, "maxLength": 4},
        "departure": {"enum": [INPUTS["departure"], "2026-12-01T09:00:00Z"]},
        "seats": {"enum": [None, 1, 17, 900]},  # to a predictor, 17.0 is no integer
        "price": {"type": ["number", "null"], "minimum": 0, "maximum": 1e9},
        "is_charter": {"type": ["boolean", "null"]},
    },
}
PREDICT = "/v1/predict/{predictor}"
CHAT = "/v1/chat/completions"
TEXTS = (CHAT, "/v1/completions")
DECIDED: dict[bool, dict[str, Any]] = {
    True: {"logprobs": True, "max_tokens": None},
    False: {"top_logprobs": None, "max_completion_tokens": None},
}
Schema = dict[str, Any]
Properties = dict[str, Any]


def named(document: dict[str, Any]) -> dict[str, Any]:
    """Only names that exist, so that it is something else which is refused."""
    document = deepcopy(document)
    paths = document["paths"]
    for path in BODIES:
        properties = _body(paths[path])["properties"]
        if "model" in properties:
            properties["model"] = {"enum": ["tiny"]}
    for operation in (paths[PREDICT]["post"], paths["/v1/predictions/{predictor}/{entity}"]["get"]):
        operation["parameters"][0]["schema"] = {"enum": ["delay"]}
    return document


def narrowed(document: dict[str, Any], *, is_stream: bool) -> dict[str, Any]:
    """Only what is answered. `is_stream`: which texts are asked for, as only a stream has options."""
    document = unhurried(named(document))
    paths = document["paths"]
    for path, narrow in BODIES.items():
        schema = _body(paths[path])
        narrow(schema["properties"])
        if path in TEXTS:
            decide(schema, {"stream": True} if is_stream else {"stream_options": None})
            schema["required"] += ["max_completion_tokens" if is_stream and path == CHAT else "max_tokens"]
    decide(_body(paths[CHAT]), DECIDED[is_stream])
    return document


def decide(schema: Schema, values: dict[str, Any]) -> None:
    """What one field says decides what another may: these are said, always."""
    for name, value in values.items():
        schema["properties"][name] = {"enum": [value]}
    schema["required"] = [*schema["required"], *values]


def unhurried(document: dict[str, Any]) -> dict[str, Any]:
    """Nothing that is asked for is late, however slow the machine."""
    document = deepcopy(document)
    for operation in (each for methods in document["paths"].values() for each in methods.values()):
        for parameter in operation["parameters"]:
            if parameter["name"] == "X-Deadline-Ms":
                parameter["schema"] |= {"minimum": 60_000}
    return document


def _body(methods: dict[str, Any]) -> Schema:
    schema: Schema = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
    return schema


def _predict(properties: Properties) -> None:
    properties["inputs"] = DELAY
    properties["alias"] = {"enum": ["live"]}
    properties["rungs"] = {"type": "array", "uniqueItems": True, "items": {"enum": ["model", "student", "prior"]}}


def _chat(properties: Properties) -> None:
    _text(properties)
    message = properties["messages"]["items"]["properties"]
    message["content"]["anyOf"][0] = {"type": "string", "maxLength": 12, "pattern": "^[ -~]*$"}
    part = message["content"]["anyOf"][1]
    part["maxItems"], part["items"]["properties"]["text"] = 3, TEXT
    properties["messages"]["maxItems"] = 4
    properties["model"] = {"enum": ["tiny", "notice"]}
    properties["max_completion_tokens"] = MAX_TOKENS
    properties["response_format"] = {"enum": [None, {"type": "text"}, {"type": "json_object"}, FORMAT]}


def _completion(properties: Properties) -> None:
    _text(properties)
    properties["prompt"] = PROMPT


def _embedding(properties: Properties) -> None:
    properties["input"] = PROMPT


def _text(properties: Properties) -> None:
    properties["max_tokens"] = MAX_TOKENS
    properties["n"]["anyOf"][0]["maximum"] = 3
    properties["logit_bias"] = BIASES


BODIES: dict[str, Callable[[Properties], None]] = {
    PREDICT: _predict,
    CHAT: _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": _embedding,
}
