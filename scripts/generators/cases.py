"""The page of behaviour cases: which test files prove which case, read from the tests' own docstrings and names."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

__all__ = ["CASES", "documents", "proved"]

TESTS: Final = Path(__file__).resolve().parents[2] / "tests"
_CASE: Final = re.compile(r"\bC-(\d{3})\b")

CASES: Final[dict[str, dict[str, str]]] = {
    "Replay (event ids, cursors, ring)": {
        "C-001": "Plain resume returns the exact missing suffix",
        "C-002": "The turn result never overtakes replayed content (/acp)",
        "C-003": "Frames written to a dead socket are replayed",
        "C-004": "Random drops under load keep the id sequence unbroken",
        "C-005": "Ring eviction is announced before the surviving suffix",
        "C-006": "A cursor ahead of the newest event is called out, then live events flow",
        "C-007": "A cursor from before a restart never silently resumes in the new counter",
        "C-008": "Last-Event-ID is accepted only as plain ASCII digits",
        "C-009": "Control frames do not consume or carry ids",
        "C-010": "Resume is confined to its own session",
        "C-011": "Two readers of one session both get everything",
        "C-012": "A reconnect is accepted while the old stream is still half-open",
        "C-013": "One hundred reconnects in a row",
    },
    "Grace (detach and reattach)": {
        "C-014": "Transport close inside the grace window keeps the turn alive",
        "C-015": "Grace expiry really stops the work",
        "C-016": "Late cleanup of an old stream does not detach the new one",
        "C-017": "Explicit close is immediate, even during grace",
        "C-018": "Losing the POST connection after 202 changes nothing",
        "C-019": "A wall-clock jump does not end grace, leases or keep-alive",
        "C-020": "A vanished reader is noticed on every HTTP transport",
    },
    "Backpressure (queues, slow readers, proxies)": {
        "C-021": "The prompt over the limit is refused with the full 503 shape",
        "C-022": "Parallel admission is exact",
        "C-023": "Slots are returned exactly once on every ending",
        "C-024": "The same refusal on the JSON-RPC surface",
        "C-025": "A reader that stops reading is cut off, not buffered",
        "C-026": "Eviction closes the socket even when the writer is blocked",
        "C-027": "A stalled subscriber delays nobody else",
        "C-028": "An agent that stops reading stdin blocks only its own session",
        "C-029": "The subscriber cap refuses loudly and frees its places",
        "C-030": "A client that resets before the body starts leaks no place",
        "C-031": "Streams pass unmodified through buffering proxies",
    },
    "Permission requests and votes": {
        "C-032": "A vote sent on another connection counts",
        "C-033": "An unanswered request survives a reconnect with the same identity",
        "C-034": "A late second vote is answered, not forwarded",
        "C-035": "One session's open question does not block another session",
        "C-036": "Cancel answers the open question",
        "C-037": "A vote for an option that was not offered",
        "C-038": "Votes from outsiders change nothing",
        "C-039": "Two opposite votes at the same instant",
    },
    "Parsing and framing (SSE, JSON-RPC, agent pipe, WebSocket, NNRP)": {
        "C-040": "CRLF split between two reads is one line end",
        "C-041": "UTF-8 characters split between reads",
        "C-042": "Only CR, LF and CRLF end a line",
        "C-043": "Comments, unknown fields and id-only blocks",
        "C-044": "Agent text cannot forge stream frames",
        "C-045": "Noise on the agent's stdout",
        "C-046": "Agent messages larger than 64 KiB",
        "C-047": "Framing on the agent pipe",
        "C-048": "A lone surrogate escape does not break the stream",
        "C-049": "JSON-RPC ids are echoed with type and value",
        "C-050": "Two clients using the same JSON-RPC ids",
        "C-051": "HTTP request validation table for /acp",
        "C-052": "Header leniency that must work",
        "C-053": "Oversized WebSocket message is refused visibly",
        "C-054": "NNRP: a declared length is not trusted",
        "C-055": "NNRP: partial reads and coalesced frames",
        "C-056": "NNRP: payload descriptors that point outside the region",
    },
    "Cancel and turn endings": {
        "C-057": "A late cancel does not hit the next prompt",
        "C-058": "Every accepted prompt ends exactly once",
        "C-059": "An agent that ignores cancel cannot hold the session for ever",
        "C-060": "Cancel is not queued behind the running turn",
        "C-061": "Updates after cancel come before the response",
        "C-062": "NNRP: the four cancel scopes",
    },
    "Shutdown, crashes and closing": {
        "C-063": "SIGTERM with everything open",
        "C-064": "Agent killed in the middle of a turn",
        "C-065": "Agent exits by itself with status 0",
        "C-066": "The whole process tree goes away",
        "C-067": "Agent that ignores stdin EOF and SIGTERM",
        "C-068": "Late news from a replaced agent is ignored",
        "C-069": "Session creation that cannot work fails in bounded time",
        "C-070": "NNRP: closing one session",
    },
    "Security": {
        "C-071": "Foreign Host header on a loopback bind",
        "C-072": "Cross-site WebSocket upgrade",
        "C-073": "A session belongs to its connection",
        "C-074": "Identifiers cannot be guessed",
        "C-075": 'Browser "simple requests" cannot change state',
        "C-076": "Preflight gives nothing away",
        "C-077": "NNRP connections that never say hello",
    },
    "Flow control (NNRP credit, HTTP/2)": {
        "C-078": "Credit comes back on every kind of ending",
        "C-079": "Old credit news is ignored",
        "C-080": "Connection credit is shared without starvation",
        "C-081": "Pause stops new work, not old work",
        "C-082": "Epochs are counted per scope",
        "C-083": "Malformed flow updates change nothing",
        "C-084": "Control still works when data is stuck",
        "C-085": "A peer that ignores its credit is stopped",
    },
    "Resume tokens (NNRP)": {
        "C-086": "Resume after a dropped connection",
        "C-087": "Bad tokens are all refused the same way",
        "C-088": "Resume while the old connection is half-open",
        "C-089": "The resume window opens and closes on time",
        "C-090": "Tokens from before a server restart",
    },
    "Schemas, cache and leases (NNRP)": {
        "C-091": "Same schema id and version, different hash",
        "C-092": "Expired lease and missing object are different answers",
        "C-093": "Unknown critical schema is an error, not a skip",
        "C-094": "Object versions only go up",
    },
    "Memory and leaks": {
        "C-095": "Create and close many sessions",
        "C-096": "An agent that floods stdout with nobody listening",
        "C-097": "Ring memory is bounded by bytes, not only by count",
        "C-098": "Stderr is always drained",
        "C-099": "Half-open WebSocket and NNRP peers are reclaimed",
    },
    "Client SDK": {
        "C-100": "Leaving the event loop early frees the connection",
        "C-101": "Automatic resume is invisible to the user",
        "C-102": "Local prompt reservations are always returned",
        "C-103": "Stream ends before the turn",
        "C-104": "Cancelling a waiting call",
        "C-105": "Clients closed in any order",
        "C-106": "Calling the session from inside its own event loop",
        "C-107": "One bad event does not kill the stream",
        "C-108": "An ambiguous POST is not sent twice",
        "C-109": "NNRP: results find the right waiter",
    },
}
"""By area: the number of a case and what it is about."""

_INTRO = """# Behaviour cases

<!-- Generated by scripts/generators/cases.py from the case numbers tests name. Do not edit. -->

The small, concrete inputs moorline is held to, and the test files that name them (`grep -rn C-031 tests`). Short forms
run in the suite; long ones of the same cases are in `benchmarks/` and `scripts/`.
"""


def documents() -> dict[str, str]:
    files = proved()
    parts = [_INTRO]
    for area, cases in CASES.items():
        rows = [f"| {number} | {title} | {_names(files[number])} |" for number, title in cases.items()]
        parts.append(f"\n## {area}\n\n| case | about | tests |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return {"docs/cases.md": "".join(parts)}


def proved() -> dict[str, set[str]]:
    """Test files by the case they name."""
    files: dict[str, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        for number in _CASE.findall(path.read_text(encoding="utf-8")):
            files[f"C-{number}"].add(path.relative_to(TESTS).as_posix())
    return files


def _names(files: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(files)) or "**none**"
