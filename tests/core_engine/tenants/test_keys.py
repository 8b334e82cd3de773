"""A key is random, is recognised by its form, and is proved by its digest alone."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.tenants.keys import digest_of, new_key, prefix_of, proves

URL_SAFE = string.ascii_letters + string.digits + "-_"


def test_a_new_key_has_256_random_bits_and_a_prefix_that_finds_it() -> None:
    made = [new_key() for _ in range(200)]
    assert len({each.key for each in made}) == len({each.prefix for each in made}) == 200
    for each in made:
        assert prefix_of(each.key) == each.prefix
        assert len(each.key) == len("hr_") + 12 + len("_") + 43  # 43 characters of base64: 256 bits
        assert each.digest == hashlib.sha256(each.key.encode()).hexdigest()
        assert each.key not in repr(each)


@given(st.text(max_size=80))
def test_what_is_no_key_of_ours_has_no_prefix_and_proves_nothing(text: str) -> None:
    assert prefix_of(text) is None
    assert not proves(text.encode("ascii", "replace").decode(), new_key().digest)


@given(st.integers(0, 42), st.sampled_from(URL_SAFE))
def test_one_wrong_character_of_the_secret_is_no_proof(at: int, character: str) -> None:
    made = new_key()
    at += len(made.key) - 43
    other = made.key[:at] + character + made.key[at + 1 :]
    assert proves(other, made.digest) == (other == made.key)


@pytest.mark.parametrize("change", [lambda key: key + "x", lambda key: key[:-1], str.upper, lambda key: f" {key}"])
def test_a_key_is_taken_whole_or_not_at_all(change: Callable[[str], str]) -> None:
    assert prefix_of(change(new_key().key)) is None


def test_the_digest_is_of_the_whole_key() -> None:
    made = new_key()
    assert digest_of(made.key) != digest_of(made.key.partition("_")[2])
