"""Running Trio code on a virtual clock with a seeded scheduler."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing

__all__ = ["run_seeded"]

T = TypeVar("T")


def run_seeded(function: Callable[..., Awaitable[T]], *args: Any, seed: int) -> T:
    """``trio.run`` with time that jumps when nothing can run, and the same order of tasks for the same seed.

    Trio shuffles the tasks that are ready on purpose; here the shuffle is drawn from ``seed``, so that one seed explores
    one order and always the same. Only code without threads, sockets and processes may run inside: real waiting would look
    like idleness.
    """
    # The two switches Trio keeps for exactly this (pytest-trio and hypothesis use them): sort a batch of ready tasks by
    # age before shuffling it, and the generator that shuffles.
    core: Any = trio._core._run
    before = core._ALLOW_DETERMINISTIC_SCHEDULING, core._r.getstate()
    urandom = os.urandom
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(random.Random(seed).getrandbits(64))
    # UUIDs of streams, WebSocket keys and masks: libraries ask the operating system for them.
    os.urandom = random.Random(seed + 1).randbytes
    try:
        return trio.run(function, *args, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        os.urandom = urandom
        core._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        core._r.setstate(before[1])
