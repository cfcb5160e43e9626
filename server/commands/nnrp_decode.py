"""``moorline nnrp decode``: NNRP bytes as annotated fields."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from protocol.nnrp.annotate import annotate, explain_error, summarise
from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.enums import ExtType, MessageType, OperationFeatures
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES, find_extension
from protocol.nnrp.packet import Packet
from protocol.nnrp.splitter import Splitter
from protocol.nnrp.vendor import OperationExtensions
from server.commands.nnrp_pcap import CaptureError, is_capture, tcp_flows

__all__ = ["decode"]

_MAX_BODY = 0xFFFF_FFFF
"""The input is at hand, so no body in it is too large."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """Bytes that are whole packets, one after the other."""

    name: str
    data: bytes


class _Violation(Exception):
    """The first rule that the input breaks."""


def _hex_lines(text: str, name: str) -> Iterator[_Stream]:
    """One stream for each line. Blanks, colons, a leading 0x and comments behind # are allowed."""
    for number, line in enumerate(text.splitlines(), 1):
        digits = line.partition("#")[0].replace(" ", "").replace("\t", "").replace(":", "").removeprefix("0x")
        if not digits:
            continue
        try:
            yield _Stream(f"{name}line {number}", bytes.fromhex(digits))
        except ValueError as error:
            raise click.UsageError(f"{name}line {number} is neither hex nor a file: {error}") from error


def _capture(data: bytes, name: str) -> Iterator[_Stream]:
    """Every TCP direction that begins with an NNRP packet."""
    try:
        for flow in tcp_flows(data):
            stream = flow.data()
            if stream.startswith(b"NNRP"):
                yield _Stream(f"{name}{flow.name}", stream)
    except CaptureError as error:
        raise click.UsageError(f"{name}{error}") from error


def _streams(source: str, form: str) -> Iterator[_Stream]:
    if source == "-":
        data, name = sys.stdin.buffer.read(), ""
    elif os.path.isfile(source):  # not Path.is_file: hex may be longer than a file name can be
        data, name = Path(source).read_bytes(), f"{source}: "
    else:
        data, name = source.encode(), ""
    if form == "auto":
        form = "pcap" if is_capture(data) else "raw" if data.startswith(b"NNRP") else "hex"
    if form == "pcap":
        yield from _capture(data, name)
    elif form == "raw":
        yield _Stream(name.removesuffix(": ") or "input", data)
    else:
        yield from _hex_lines(data.decode("utf-8", "replace"), name)


class _Decoder:
    """Decodes streams one after the other and remembers which sessions were granted operation extensions."""

    def __init__(self, *, strict: bool, extensions: bool) -> None:
        self._strict = strict
        self._all = extensions
        self._granted: dict[int, OperationFeatures] = {}

    def packets(self, stream: _Stream) -> Iterator[tuple[int, Packet]]:
        """Offset and packet; raises `_Violation` at the first fault."""
        splitter, offset = Splitter(max_body_bytes=_MAX_BODY), 0
        splitter.receive_data(stream.data)
        splitter.receive_eof()
        try:
            if not stream.data:
                return
            for raw in splitter.packets():
                packet = raw.decode(strict=self._strict, granted=self._features(raw.header.session_id))
                self._learn(packet)
                yield offset, packet
                offset += len(raw.data)
        except NnrpError as error:
            raise _Violation(f"{stream.name}: packet at byte {offset}: {explain_error(error)}") from error

    def _features(self, session_id: int) -> OperationFeatures:
        return ALL_FEATURES if self._all else self._granted.get(session_id, NO_FEATURES)

    def _learn(self, packet: Packet) -> None:
        if packet.kind is MessageType.SESSION_OPEN_ACK and isinstance(packet.content, ControlBody):
            granted = find_extension(packet.content.extensions, ExtType.OPERATION_EXTENSIONS)
            if isinstance(granted, OperationExtensions):
                self._granted[packet.header.session_id] = granted.features


def _print_full(offset: int, packet: Packet) -> None:
    for line in annotate(packet):
        place = f"{offset + line.offset:6d}  {line.size:4d}"
        text = f"{place}  {'  ' * line.depth}{line.name}"
        if line.value:
            text += f" = {line.value}" if line.size or line.value else ""
        click.echo(f"{text}    ; {line.note}" if line.note else text)
    click.echo()


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="HEX|FILE|-...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "hex", "raw", "pcap"]),
    default="auto",
    show_default=True,
    help="What the input is; auto looks at its first bytes.",
)
@click.option("--full", is_flag=True, help="Every field with offset, size, value and rule, not one line per packet.")
@click.option("--tolerant", is_flag=True, help="Accept what an interoperating endpoint accepts (default: strict).")
@click.option(
    "--extensions",
    is_flag=True,
    help="Read operation extensions on every session, not only where the input shows that they were granted.",
)
def decode(sources: tuple[str, ...], form: str, full: bool, tolerant: bool, extensions: bool) -> None:
    """Decode NNRP packets.

    A source is hex (one or more packets on each line), a file with hex lines, raw bytes or a packet capture, or - for
    standard input. Stops with exit code 1 at the first violation and names offset and rule.
    """
    decoder = _Decoder(strict=not tolerant, extensions=extensions)
    number = 0
    try:
        for source in sources:
            for stream in _streams(source, form):
                for offset, packet in decoder.packets(stream):
                    number += 1
                    click.echo(f"#{number} {stream.name} byte {offset}: {summarise(packet)}")
                    if full:
                        _print_full(offset, packet)
    except _Violation as violation:
        click.echo(str(violation), err=True)
        raise SystemExit(1) from violation
    if not number:
        raise click.UsageError("there is no NNRP packet in the input")
