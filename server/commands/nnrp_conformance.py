"""``moorline nnrp conformance``: the adapter of the public conformance suite."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from server.conformance.case import Evidence, Verdict

__all__ = ["conformance"]


class Artifacts(msgspec.Struct):
    results_path: str
    evidence_dir: str


class PlannedCase(msgspec.Struct):
    id: str
    layer: str
    status: str
    feature: str
    required_capabilities: list[str]
    description: str
    parameters: dict[str, Any] = {}


class Plan(msgspec.Struct):
    """What the suite's runner hands to an adapter. Keys beyond these are let pass: they are the runner's."""

    protocol_version: str
    suite_version: str
    implementation_name: str
    artifacts: Artifacts
    cases: list[PlannedCase]


class CaseResult(msgspec.Struct, omit_defaults=True):
    id: str
    outcome: str
    failure_kind: str = ""
    message: str = ""
    evidence_paths: list[str] = []


class Results(msgspec.Struct):
    protocol_version: str
    implementation_name: str
    results: list[CaseResult]


@click.command()
@click.option("--plan", type=click.Path(path_type=Path), required=True, help="The plan of the suite's runner (JSON).")
@click.option("--output", type=click.Path(path_type=Path), help="Where results go instead of the plan's results_path.")
@click.option("--url", help="A running server, tcp://host:port, whose runner is the echo. Without it one of our own.")
@click.option("--quic-url", help="The same server over QUIC, quic://host:port.")
@click.option("--ca-file", help="Whose certificates to trust over QUIC, in PEM.")
@click.option("--token", envvar="MOORLINE_TOKEN", help="Token of that server. Also MOORLINE_TOKEN.")
@click.option("--machines", is_flag=True, help="Decide on the codec and the machines alone, without a server.")
def conformance(plan: Path, output: Path | None, machines: bool, **where: str | None) -> None:
    """Carry out the cases of a conformance plan and write their results.

    Every case is decided twice: on the codec and the machines, and against a running server, by raw packets and our client.
    It passes when both pass. Without --url the server is one of our own in this process, on loopback, over TCP and QUIC.

    Exit status 0 when results were written, whatever they say; 1 when they cannot be written; 2 for a plan that cannot
    be read or has not the agreed form.
    """
    wanted = _read(plan)
    live = None if machines else _run_live([each.id for each in wanted.cases], where)
    folder = Path(wanted.artifacts.evidence_dir)
    results = Results(
        wanted.protocol_version,
        wanted.implementation_name,
        [_carry_out(each, folder, None if live is None else live[each.id]) for each in wanted.cases],
    )
    target = output or Path(wanted.artifacts.results_path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    except OSError as error:
        raise click.ClickException(f"the results cannot be written: {error}") from error
    _summarise(results, target)


def _read(path: Path) -> Plan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise click.UsageError(f"the plan cannot be read: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is not a plan: {error}") from error


def _run_live(identifiers: list[str], where: dict[str, str | None]) -> dict[str, tuple[Verdict, Evidence]]:
    import trio

    from server.conformance.live import open_place, run_live_cases

    async def run() -> dict[str, tuple[Verdict, Evidence]]:
        url, quic = where["url"], where["quic_url"]
        async with open_place(url, quic=quic, token=where["token"], ca_file=where["ca_file"]) as place:
            return await run_live_cases(place, identifiers)

    return trio.run(run)


def _carry_out(wanted: PlannedCase, evidence_dir: Path, live: tuple[Verdict, Evidence] | None) -> CaseResult:
    from server.conformance import Evidence, run_case
    from server.conformance.case import both

    evidence = Evidence()
    verdict = run_case(wanted.id, evidence)
    if live is not None:
        verdict = both(verdict, live[0])
        evidence.lines += ["", "against the running server:", *live[1].lines]
    result = CaseResult(wanted.id, str(verdict.outcome), verdict.failure_kind, verdict.message)
    if evidence.lines:
        result.evidence_paths = _write_evidence(evidence_dir / f"{_file_name(wanted.id)}.txt", evidence.lines)
    return result


def _write_evidence(path: Path, lines: list[str]) -> list[str]:
    """The path in a list, or nothing and a warning: a result without its evidence is a result."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        click.echo(f"evidence not written: {error}", err=True)
        return []
    return [str(path)]


def _file_name(identifier: str) -> str:
    """A case id comes from outside and must not choose the folder."""
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in identifier)


def _summarise(results: Results, target: Path) -> None:
    counts: dict[str, int] = {}
    for each in results.results:
        counts[each.outcome] = counts.get(each.outcome, 0) + 1
        if each.outcome in ("fail", "error"):
            click.echo(f"{each.outcome}: {each.id}: {each.message}", file=sys.stderr)
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no cases"
    click.echo(f"{summary} -> {target}")
