"""``moorline nnrp decode``: inputs, outputs, exit codes (issue 4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from protocol.nnrp.enums import CancelScopeKind, ExtType, OperationFeatures
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.messages import FrameCancel, SessionOpenAck
from protocol.nnrp.packet import decode_packet, encode_packet
from protocol.nnrp.vendor import CancelScope, OperationExtensions
from server.commands.nnrp_decode import decode
from tests.protocol.nnrp.pcap import classic, conversation, next_generation
from tests.protocol.nnrp.vectors import NEGATIVE, POSITIVE, captures

VECTORS = {each["name"]: each["hex"] for each in (*POSITIVE, *NEGATIVE)}
PING, HELLO = VECTORS["ping.session_traced"], VECTORS["client_hello.forced_tcp_and_auth"]
LEGACY = VECTORS["result_push.legacy16_typed"]


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(decode, list(arguments), input=stdin)


def test_hex_argument() -> None:
    result = run(PING)
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    assert "PING" in line
    assert "session=7" in line
    assert "route=3" in line
    assert "trace=1234605616436508552" in line


def test_one_line_for_each_packet() -> None:
    """A line of hex may hold several packets; several sources follow each other; numbers run on."""
    result = run(PING + HELLO, PING)
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == ["#1", "#2", "#3"]
    assert "byte 40: CLIENT_HELLO" in lines[1]
    assert "requested_session_id=42" in lines[1]


@pytest.mark.parametrize(
    "text",
    [
        f"{PING}\n{HELLO}\n",
        f"# two packets\n0x{PING}   # ping\n\n{':'.join(HELLO[i : i + 2] for i in range(0, len(HELLO), 2))}",
    ],
)
def test_hex_lines_from_standard_input_and_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "packets.hex"
    file.write_text(text)
    for result in (run("-", stdin=text.encode()), run(str(file))):
        assert result.exit_code == 0
        assert [word for word in result.output.split() if word in ("PING", "CLIENT_HELLO")] == ["PING", "CLIENT_HELLO"]


def test_raw_bytes(tmp_path: Path) -> None:
    file = tmp_path / "stream.bin"
    file.write_bytes(bytes.fromhex(PING + HELLO))
    for result in (run(str(file)), run("-", stdin=file.read_bytes()), run("--format", "raw", str(file))):
        assert result.exit_code == 0
        assert len(result.output.splitlines()) == 2


def recorded(name: str) -> list[tuple[bool, bytes]]:
    return [(entry["dir"] == "c2s", bytes.fromhex(entry["hex"])) for each, _, entry in captures() if each == name]


@pytest.mark.parametrize("write", [classic, lambda frames: classic(frames, order=">"), next_generation])
@pytest.mark.parametrize("size", [33, 1400])
def test_packet_capture(write: object, size: int, tmp_path: Path) -> None:
    """Both directions of a recorded connection, whatever the segments; what is not NNRP is left out."""
    turns = recorded("rs-tcp-open-token-result-close")
    frames = conversation(turns, size=size)
    frames += conversation([(True, b"GET / HTTP/1.1\r\n\r\n")], port=50_001)
    frames.insert(4, frames[3])  # a retransmission
    frames.append(b"\xff" * 6 + bytes(6) + b"\x08\x06" + bytes(28))  # ARP
    file = tmp_path / "capture.pcap"
    file.write_bytes(write(frames))  # type: ignore[operator]  # one of the writers above
    result = run(str(file))
    assert result.exit_code == 0, result.output
    kinds = [line.split(": ")[2].split()[0] for line in result.output.splitlines()]
    to_server = [decode_packet(data).kind.name for forth, data in turns if forth]
    to_client = [decode_packet(data).kind.name for forth, data in turns if not forth]
    assert kinds == to_server + to_client


def test_a_hole_in_a_capture(tmp_path: Path) -> None:
    frames = conversation(recorded("rs-tcp-open-token-result-close"), size=33)
    del frames[4]
    file = tmp_path / "capture.pcap"
    file.write_bytes(classic(frames))
    result = run(str(file))
    assert result.exit_code == 2
    assert "33 bytes are missing at byte 33" in result.output


@pytest.mark.parametrize("data", [b"\xd4\xc3\xb2\xa1", b"\x0a\x0d\x0d\x0a" + bytes(30)])
def test_a_truncated_capture(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "capture.pcap"
    file.write_bytes(data)
    assert run(str(file)).exit_code == 2


def test_full() -> None:
    """Every field with offset, size, value; bitmaps and enumerations by name; bodies too."""
    result = run("--full", VECTORS["frame_submit.event_tool_token24_ext"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "6 1 msg_type = 16 frame_submit ; section 5" in lines
    assert "104 4 payload_kind_bitmap = 0x32 token_chunk|structured_event|tool_delta" in lines
    assert "120 4 typed_payload_descriptor_bytes = 72 ; = payload_frame_count × 24" in lines
    assert '216 7 payload = 7b2265223a317d ; {"e":1}' in lines
    assert "240 2 payload = 7878 ; xx" in lines


@pytest.mark.parametrize(
    "vector", [pytest.param(each, id=each["name"]) for each in POSITIVE if each["kind"] == "packet"]
)
def test_full_covers_every_packet_of_the_vectors(vector: dict[str, str]) -> None:
    """Every packet can be shown, and no shown field lies outside it."""
    result = run("--full", "--tolerant", vector["hex"])
    assert result.exit_code == 0, result.output
    for line in result.output.splitlines()[1:]:
        if line:
            offset, size = (int(word) for word in line.split()[:2])
            assert offset + size <= len(vector["hex"]) // 2


def test_violation() -> None:
    """Exit 1 at the first violation, with offset and rule; what came before it is shown."""
    result = run(PING + VECTORS["reject.session_open_body_undeclared"] + PING)
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    assert "packet at byte 40: SESSION_OPEN.body at offset 88: LengthMismatch" in result.stderr
    assert "nnrp-wire 7.7" in result.stderr


def test_violation_in_a_header() -> None:
    result = run(VECTORS["reject.header_flag_bit6"])
    assert result.exit_code == 1
    assert "HEADER.flags at offset 8: ReservedBits" in result.stderr


def test_truncated_stream() -> None:
    result = run(PING + HELLO[:-2])
    assert result.exit_code == 1
    assert "TooShort" in result.stderr


def test_strict_and_tolerant() -> None:
    assert run(LEGACY).exit_code == 1
    assert run("--tolerant", LEGACY).exit_code == 0


def test_extensions_are_known_once_they_were_granted() -> None:
    """A SESSION_OPEN_ACK earlier in the input grants them; --extensions reads them without."""
    grant = ControlExtension.of(ExtType.OPERATION_EXTENSIONS, OperationExtensions(features=OperationFeatures(31)))
    block = pack_extensions([grant])
    ack = encode_packet(SessionOpenAck(session_id=5, session_extension_bytes=len(block)), block, session_id=5)
    scope = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, CancelScope(CancelScopeKind.SESSION))])
    cancel = encode_packet(FrameCancel(), scope, session_id=5)
    assert run(cancel.hex()).exit_code == 1
    assert run(ack.hex(), cancel.hex()).exit_code == 0
    assert run("--extensions", cancel.hex()).exit_code == 0


@pytest.mark.parametrize("source", ["no-such-file", "4e4e5", "# nothing", ""])
def test_usage_errors(source: str) -> None:
    assert run(source).exit_code == 2
