from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from kernels.cpu.memory import HUGE_PAGE, LINE, REGION, Arena, return_freed, zeroed


def test_fresh_memory_is_zero_and_begins_with_a_huge_page() -> None:
    memory = zeroed(3 * HUGE_PAGE + 5)
    assert memory.shape == (3 * HUGE_PAGE + 5,)
    assert memory.data_ptr() % HUGE_PAGE == 0
    assert not memory.any()


def test_pieces_of_an_arena_begin_with_a_line_and_share_no_byte() -> None:
    arena = Arena()
    sizes = [1, LINE, LINE + 1, REGION - 5, 3, REGION + 7, 9]
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(arena.take, sizes))
    for number, piece in enumerate(pieces):
        piece.fill_(number + 1)
    assert [len(piece) for piece in pieces] == sizes
    assert all(piece.data_ptr() % LINE == 0 for piece in pieces)
    assert all(bool((piece == number + 1).all()) for number, piece in enumerate(pieces))


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take(100).fill_(7)
    return_freed()
    assert torch.equal(piece, torch.full((100,), 7, dtype=torch.uint8))
