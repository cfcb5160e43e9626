"""The generated Wireshark dissector, run by tshark over recorded streams."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from protocol.nnrp.annotate import LAYOUTS
from protocol.nnrp.enums import MessageType
from scripts.generators import nnrp_wireshark
from tests.protocol.nnrp.pcap import classic, conversation
from tests.protocol.nnrp.vectors import captures

SCRIPT = Path(__file__).resolve().parents[3] / nnrp_wireshark.PATH
TSHARK = shutil.which("tshark")
REQUIRED = os.environ.get("MOORLINE_REQUIRE_TSHARK") == "1"

needs_tshark = pytest.mark.skipif(
    TSHARK is None and not REQUIRED,
    reason="tshark is not installed (Debian package tshark); mandatory in .ci/run",
)


def recorded() -> list[Any]:
    """The TCP connections of the captures: turns in order."""
    found: defaultdict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for name, _, entry in captures():
        if "quic_stream" not in entry:
            found[name, entry["conn"]].append(entry)
    return [pytest.param(entries, id=f"{name}-{connection}") for (name, connection), entries in found.items()]


def tshark(capture: Path, *fields: str) -> list[list[str]]:
    """The values of ``fields`` in each frame that has NNRP in it."""
    assert TSHARK is not None, "MOORLINE_REQUIRE_TSHARK is set and tshark is not installed"
    command = [TSHARK, "-X", f"lua_script:{SCRIPT}", "-r", str(capture), "-Y", "nnrp", "-T", "fields"]
    for field in fields:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Error during loading" not in done.stderr, done.stderr
    assert "Lua Error" not in done.stdout + done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def together(rows: list[list[str]], column: int) -> list[int]:
    """All values of a column; a frame with several packets has several, separated by commas."""
    return [int(value, 0) for row in rows for value in row[column].split(",") if value]


@needs_tshark
def test_tshark_reads_recorded_streams(tmp_path: Path) -> None:
    """Types and header ids of every packet of every recorded TCP connection, all in one capture."""
    frames, connections = [], {}
    for port, parameter in enumerate(recorded(), 50_000):
        (entries,) = parameter.values
        turns = [(entry["dir"] == "c2s", bytes.fromhex(entry["hex"])) for entry in entries]
        frames += conversation(turns, port=port)
        connections[str(port)] = entries
    capture = tmp_path / "all.pcap"
    capture.write_bytes(classic(frames))
    header = ["nnrp.header." + name for name in ("msg_type", "session_id", "frame_id", "body_len", "trace_id")]
    rows = tshark(capture, "tcp.port", *header)
    for port, entries in connections.items():
        mine = [row for row in rows if port in row[0].split(",")]
        assert together(mine, 1) == [int(MessageType[entry["type"]]) for entry in entries]
        for column, name in enumerate(("session_id", "frame_id", "body_len", "trace_id"), 2):
            assert together(mine, column) == [entry["decoded"]["header"][name] for entry in entries]


@needs_tshark
def test_tshark_reads_metadata_and_bodies(tmp_path: Path) -> None:
    """Metadata, a region body, its descriptors and payload, across segment borders and with two packets in one segment."""
    (entries,) = next(each for each in recorded() if str(each.id).startswith("rs-tcp-open-token-result-close")).values
    stream = b"".join(bytes.fromhex(entry["hex"]) for entry in entries if entry["dir"] == "c2s")
    for size in (50, 1400):
        capture = tmp_path / f"{size}.pcap"
        capture.write_bytes(classic(conversation([(True, stream)], size=size)))
        rows = tshark(
            capture,
            "nnrp.header.msg_type",
            "nnrp.session_open.schema_id",
            "nnrp.frame_submit.payload_kind_bitmap",
            "nnrp.typed_payload_descriptor.length",
            "nnrp.payload",
            "nnrp.session_close.last_operation_id",
            "_ws.expert.message",
        )
        assert together(rows, 0) == [0x07, 0x10, 0x09]
        assert together(rows, 1) == [0x1001]
        assert together(rows, 2) == [2]
        assert together(rows, 3) == [5]
        assert "68656c6c6f" in ",".join(row[4] for row in rows)
        assert together(rows, 5) == [1]
        assert all("Reserved" not in row[6] and "Lengths" not in row[6] for row in rows)


@needs_tshark
def test_tshark_reports_damage(tmp_path: Path) -> None:
    """Reserved bytes, unknown bits and values are marked."""
    (entries,) = next(each for each in recorded() if str(each.id).startswith("rs-tcp-open-token-result-close")).values
    opening = bytearray.fromhex(entries[0]["hex"])
    layout = LAYOUTS["SESSION_OPEN"].LAYOUT
    for name, value in (("reserved0", 1), ("session_flags", 0x10), ("priority_class", 9)):
        opening[40 + layout.field(name).offset] = value
    capture = tmp_path / "damaged.pcap"
    capture.write_bytes(classic(conversation([(True, bytes(opening))])))
    ((messages,),) = tshark(capture, "_ws.expert.message")
    for wanted in ("Reserved field is not zero", "Unknown bits are set", "Unknown enumeration value"):
        assert wanted in messages


def test_the_dissector_declares_every_field() -> None:
    """One truth: each field of each layout is in the generated script, at its offset."""
    text = SCRIPT.read_text(encoding="utf-8")
    for name, made in LAYOUTS.items():
        assert f"sizes.{name} = {made.SIZE}" in text
        for field in made.LAYOUT.fields:
            assert f'add("{name}", {field.offset}, {field.scalar.size}, ' in text
            assert f'"nnrp.{name.lower()}.{field.name}"' in text
