"""The bounds in bytes are meant as the system sees them, so what is freed has to go back to it."""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["LARGE_BLOCK", "give_back_large_blocks"]

LARGE_BLOCK: Final = 128 * 1024
"""Bytes from which on a block gets pages of its own: glibc's own beginning."""
_M_MMAP_THRESHOLD: Final = -3


def give_back_large_blocks() -> bool:
    """Keep large blocks out of the C library's heap, for the whole process. False where there is no such switch.

    glibc raises its threshold whenever a larger block is freed, and soon keeps blocks of a megabyte in the heap, where they
    leave holes that later, larger ones do not fit into: a ring of 256 MiB of growing tool calls took 425 MiB, and takes
    less than 320 with the threshold held (C-097). For the starts that own their process; a program that embeds moorline decides itself.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        # Another C library.
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK))
