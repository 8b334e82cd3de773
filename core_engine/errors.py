"""One tree of errors; `status` (HTTP) and `retryable` are class data, so that no door decides them twice.

HeadraceError
├── ConfigurationError        a setting, a declaration or a file that stops start-up
│   └── ModelFileError        a model or scorer file that cannot be loaded
├── InvalidRequest            4xx: names field, value and expectation
│   ├── UnknownName           404: a predictor, model, version or alias that does not exist
│   ├── PromptTooLong         400: prompt + max_tokens over the context length
│   └── BodyTooLarge          413
├── AccessDenied              who asks may not
│   ├── Unauthenticated       401: no key, or none of ours
│   └── Forbidden             403: a key that was revoked or has expired, or not for this
├── QuotaExceeded             429, retryable: a tenant's own limit; says when there is room again
└── Unavailable               retryable: the platform cannot do it now
    ├── EngineUnavailable     no engine, or it was lost with the request in it
    ├── EngineRefused         queue full, or the deadline cannot be met
    ├── DeadlineExceeded      the caller's own timer went off
    ├── StoreUnavailable      Redis away
    │   ├── StoreBreakerOpen  it has not answered of late and is not asked for a moment
    │   ├── StoreFull         it has no memory left to write
    │   └── StoreReadOnly     a replica, which takes no writes
    └── BrokerUnavailable     Kafka away, or it takes no records

Two more stand where they are raised: `pools.replica.ChildFailed` and `headrace.demo.load.DemoFailed`.
"""

from __future__ import annotations

from typing import ClassVar


class HeadraceError(Exception):
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    code: ClassVar[str] = "internal_error"


class ConfigurationError(HeadraceError):
    code = "configuration_error"


class ModelFileError(ConfigurationError):
    code = "model_file_error"


class InvalidRequest(HeadraceError):
    """A request that can never succeed as sent. `field` is the path of what is wrong, `expected` what would do."""

    status = 422
    code = "invalid_request"

    def __init__(self, message: str, *, field: str | None = None, value: object = None, expected: str | None = None):
        super().__init__(message)
        self.field = field
        self.value = value
        self.expected = expected


class UnknownName(InvalidRequest):
    status = 404
    code = "unknown_name"


class PromptTooLong(InvalidRequest):
    status = 400
    code = "context_length_exceeded"


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "body_too_large"


class AccessDenied(HeadraceError):
    """Never holds the key that was sent: messages end up in replies and logs."""

    status = 403
    code = "forbidden"


class Unauthenticated(AccessDenied):
    status = 401
    code = "invalid_api_key"


class Forbidden(AccessDenied):
    pass


class QuotaExceeded(HeadraceError):
    """`quota` is the limit that was met: requests, tokens or streams; it has room again after `retry_after_s`."""

    status = 429
    retryable = True
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, quota: str, retry_after_s: float):
        super().__init__(message)
        self.quota = quota
        self.retry_after_s = retry_after_s


class Unavailable(HeadraceError):
    status = 503
    retryable = True
    code = "unavailable"


class EngineUnavailable(Unavailable):
    code = "engine_unavailable"


class EngineRefused(Unavailable):
    code = "engine_refused"


class DeadlineExceeded(Unavailable):
    status = 504
    code = "deadline_exceeded"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class StoreBreakerOpen(StoreUnavailable):
    code = "breaker_open"


class StoreFull(StoreUnavailable):
    code = "store_full"


class StoreReadOnly(StoreUnavailable):
    code = "store_read_only"


class BrokerUnavailable(Unavailable):
    code = "broker_unavailable"
