"""What is freed goes back to the system: C-097."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

RING = """
import resource
from collections import deque
from pathlib import Path
from server.memory import give_back_large_blocks

assert give_back_large_blocks()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before, ring, sent, held = resident(), deque(), deque(maxlen=4), 0
for number in range(10, 1200):
    # What happens to a line of the agent's: read in pieces, cut out, encoded, joined for a socket.
    buffer = bytearray()
    for _ in range(number * 500 // 65536 + 1):
        buffer += bytes(65536)
    line = bytes(buffer)
    del buffer
    data = line[100:]
    del line
    form = b"id: 1\\ndata: " + data
    ring.append((data, form))
    held += len(data) + len(form)
    sent.append(b"".join([form, b"."]))
    while held > 24 * 2**20:
        held -= sum(map(len, ring.popleft()))
print((resident() - before) / 2**20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switch is glibc's")
def test_a_ring_of_growing_events_takes_what_it_holds() -> None:
    """24 MiB held; a half more without the switch."""
    done = subprocess.run([sys.executable, "-c", RING], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 32
