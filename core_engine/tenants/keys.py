"""API keys: `hr_<prefix>_<secret>`. The prefix finds a key's row, the secret proves it; only a digest is stored.

The digest is one SHA-256, without salt and not slowed down. Salts and slow hashes protect secrets that people choose,
whose likely values can be tried; 256 random bits cannot be, and every request pays for the check.
Source: NIST SP 800-63B (2017), section 5.1.2.2: secrets of 112 bits or more are stored under an approved hash, no more.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

SECRET_BYTES = 32
PREFIX_BYTES = 6
KEY = re.compile(r"hr_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `key` is to be shown once and kept nowhere."""

    key: str = field(repr=False)
    prefix: str
    digest: str


def new_key() -> NewKey:
    prefix = secrets.token_hex(PREFIX_BYTES)
    key = f"hr_{prefix}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(key, prefix, digest_of(key))


def digest_of(key: str) -> str:
    """SHA-256 of the whole key, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def prefix_of(text: str) -> str | None:
    """The public part of a key; None where `text` does not have the form of one of ours."""
    found = KEY.fullmatch(text)
    return found.group(1) if found else None


def proves(key: str, digest: str) -> bool:
    """Whether `digest` is that of `key`, in a time that does not depend on where they differ."""
    return hmac.compare_digest(digest_of(key), digest)
