"""The adapter of the public NNRP conformance suite: plan in, results out, every case really carried out (issues 4 and 5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protocol.nnrp.machines.credit import Window
from protocol.nnrp.machines.operations import OperationTable
from protocol.nnrp.machines.resume import ResumeDecision
from protocol.nnrp.machines.schemas import SchemaRegistry
from server.cli import main
from server.conformance import CASES, SKIPS, Evidence, run_case
from server.conformance.case import CaseOutcome, case, expect
from server.conformance.golden import BLOCKS, CACHE_CODES, HEADER, PACKETS, SCHEMA_CODES
from tests.protocol.nnrp.vectors import POSITIVE, VECTORS

SUITE: list[dict[str, Any]] = json.loads((VECTORS / "nnrp-preview3-cases.json").read_text())
IDS = [each["id"] for each in SUITE]
NEEDS_A_SERVER = {
    "l3.transport.quic.minimum",
    "l3.transport.tcp.minimum",
    "l2.payload.typed.callback_polling.descriptor_consistency.validation",
    "l2.profile.token.partial.callback_polling.validation",
}


def plan(tmp_path: Path, *ids: str) -> dict[str, Any]:
    cases = [
        {
            "id": identifier,
            "layer": "L1",
            "status": "mandatory",
            "feature": "x",
            "required_capabilities": ["x"],
            "description": "x",
        }
        for identifier in ids
    ]
    return {
        "protocol_version": "nnrp-1-preview3",
        "suite_version": "0.1.0",
        "implementation_name": "moorline",
        "artifacts": {"results_path": str(tmp_path / "planned.json"), "evidence_dir": str(tmp_path / "evidence")},
        "cases": cases,
    }


def run(tmp_path: Path, content: object, *more: str) -> Result:
    path = tmp_path / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return CliRunner().invoke(main, ["nnrp", "conformance", "--plan", str(path), "--machines", *more])


def results_of(path: Path) -> dict[str, dict[str, Any]]:
    written = json.loads(path.read_text())
    assert set(written) == {"protocol_version", "implementation_name", "results"}
    allowed = {"id", "outcome", "failure_kind", "message", "evidence_paths"}
    assert all({"id", "outcome"} <= set(each) <= allowed for each in written["results"])
    return {each["id"]: each for each in written["results"]}


@pytest.mark.parametrize("identifier", IDS)
def test_every_case_of_the_suite(identifier: str) -> None:
    """On the codec and the machines alone; what takes a running server to see is skipped there."""
    evidence = Evidence()
    verdict = run_case(identifier, evidence)
    if identifier in NEEDS_A_SERVER:
        assert verdict.outcome is CaseOutcome.SKIP
        assert "running server" in verdict.message
        return
    assert verdict.outcome is CaseOutcome.PASS, verdict
    assert verdict.message == verdict.failure_kind == ""


def test_the_adapter_knows_exactly_the_suite() -> None:
    assert set(CASES) | set(SKIPS) == set(IDS)
    assert set(SKIPS) == NEEDS_A_SERVER


def test_a_whole_plan(tmp_path: Path) -> None:
    """Results in the order of the plan, no other keys, evidence where it says."""
    output = tmp_path / "deep" / "results.json"
    done = run(tmp_path, plan(tmp_path, *IDS, "l9.invented.case"), "--output", str(output))
    assert done.exit_code == 0, done.output
    results = results_of(output)
    assert list(results) == [*IDS, "l9.invented.case"]
    assert results["l9.invented.case"]["outcome"] == "skip"
    assert "does not know" in results["l9.invented.case"]["message"]
    counts = [each["outcome"] for each in results.values()]
    assert (counts.count("pass"), counts.count("skip")) == (len(IDS) - 4, 5)
    assert not (tmp_path / "planned.json").exists(), "--output wins over results_path"
    evidence = Path(results["l1.session.open_close"]["evidence_paths"][0])
    assert "client receives SESSION_OPEN_ACK 4e4e5250" in evidence.read_text()


def test_the_planned_path_without_output(tmp_path: Path) -> None:
    done = run(tmp_path, plan(tmp_path, "l1.handshake.basic"))
    assert done.exit_code == 0
    assert results_of(tmp_path / "planned.json")["l1.handshake.basic"]["outcome"] == "pass"


def test_what_the_sample_plan_of_the_suite_has_beside_is_let_pass(tmp_path: Path) -> None:
    wanted = plan(tmp_path, "l1.handshake.basic") | {"$schema": "../../schemas/x.json"}
    wanted["cases"][0]["parameters"] = {"anything": [1]}
    assert run(tmp_path, wanted).exit_code == 0


def without(name: str) -> dict[str, Any]:
    wanted = plan(Path("x"), "l1.handshake.basic")
    del wanted[name]
    return wanted


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no json",
        "[]",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        without("cases"),
        without("artifacts"),
        without("protocol_version"),
        plan(Path("x")) | {"cases": {}},
        plan(Path("x")) | {"cases": [{"id": "l1.handshake.basic"}]},
        plan(Path("x")) | {"artifacts": {"results_path": "x"}},
        plan(Path("x")) | {"suite_version": 1},
    ],
    ids=str,
)
def test_a_malformed_plan(tmp_path: Path, content: object) -> None:
    """Exit status 2, nothing written."""
    done = run(tmp_path, content, "--output", str(tmp_path / "out.json"))
    assert done.exit_code == 2
    assert "is not a plan" in done.output
    assert not (tmp_path / "out.json").exists()


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["nnrp", "conformance", "--plan", str(tmp_path / "none.json")])
    assert done.exit_code == 2
    assert "cannot be read" in done.output


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, plan(tmp_path, "l1.handshake.basic"), "--output", str(tmp_path / "file" / "out.json"))
    assert done.exit_code == 1
    assert "cannot be written" in done.output


def test_evidence_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("")
    done = run(tmp_path, plan(tmp_path, "l1.handshake.basic"))
    assert done.exit_code == 0
    assert "evidence not written" in done.output
    assert "evidence_paths" not in results_of(tmp_path / "planned.json")["l1.handshake.basic"]


def test_a_case_id_cannot_leave_the_evidence_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "../../escape", lambda evidence: evidence.note("x"))
    run(tmp_path, plan(tmp_path, "../../escape"))
    (path,) = results_of(tmp_path / "planned.json")["../../escape"]["evidence_paths"]
    assert Path(path).parent == tmp_path / "evidence"


# The judge itself


def test_a_failed_expectation_is_a_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "made.up", lambda evidence: expect(False, "the demand"))
    verdict = run_case("made.up", Evidence())
    assert (verdict.outcome, verdict.failure_kind, verdict.message) == (CaseOutcome.FAIL, "expectation", "the demand")


def test_a_crash_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def crash(evidence: Evidence) -> None:
        raise KeyError("lost")

    monkeypatch.setitem(CASES, "made.up", crash)
    done = run(tmp_path, plan(tmp_path, "made.up"))
    assert done.exit_code == 0
    result = results_of(tmp_path / "planned.json")["made.up"]
    assert (result["outcome"], result["failure_kind"]) == ("error", "KeyError")


def test_two_cases_cannot_share_an_id() -> None:
    with pytest.raises(ValueError, match="two cases"):
        case("l1.handshake.basic")(lambda evidence: None)


BROKEN = [
    (Window, "hold", lambda self, *, background=False: None, "l1.flow_update.session.scope.validation"),
    (Window, "take", lambda self: None, "l1.flow_update.connection.scope.validation"),
    (OperationTable, "targets", lambda self, *_: (), "l1.operation.cancel_scope.validation"),
    (OperationTable, "used_frame", lambda self, frame_id: False, "l1.result_push.basic.terminal.validation"),
    (SchemaRegistry, "missing", lambda self, schema: (), "l1.schema.registry.invalidate_conflict.validation"),
]


@pytest.mark.parametrize(("owner", "name", "wrong", "identifier"), BROKEN, ids=lambda each: str(each))
def test_cases_notice_a_broken_machine(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: object, identifier: str
) -> None:
    """The cases run the machines: break one, and they fail."""
    monkeypatch.setattr(owner, name, wrong)
    assert run_case(identifier, Evidence()).outcome in (CaseOutcome.FAIL, CaseOutcome.ERROR)


def test_a_resume_that_accepts_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from server.conformance import l1_control

    monkeypatch.setattr(l1_control, "decide_resume", lambda *_, **__: ResumeDecision())
    verdict = run_case("l1.session.resume.rejected.validation", Evidence())
    assert verdict.outcome in (CaseOutcome.FAIL, CaseOutcome.ERROR)


# The golden bytes are the vectors'

GOLDEN_VECTORS = {
    "l0.session_open.metadata.golden": "session_open.default_context",
    "l0.session_open_ack.metadata.golden": "session_open_ack.opened",
    "l0.session_close.metadata.golden": "session_close.drain",
    "l0.session_close_ack.metadata.golden": "session_close_ack.draining",
    "l0.session_resume_ack.resumed.golden": "session_open_ack.resumed",
    "l0.session_resume_ack.rejected.golden": "session_open_ack.resume_rejected_codec_only",
    "l0.flow_update.packet.golden": "flow_update.session_hard",
    "l0.flow_update.connection.packet.golden": "flow_update.connection_grant",
}


def test_golden_bytes_are_those_of_the_vectors() -> None:
    vectors = {each["name"]: each for each in POSITIVE}
    for identifier, name in GOLDEN_VECTORS.items():
        golden = (BLOCKS | PACKETS)[identifier]
        vector = vectors[name]
        assert golden.data.hex() == vector["hex"], identifier
        assert golden.fields == vector["fields"].get("metadata", vector["fields"]), identifier
    header = vectors["header.frame_submit_ack_required_keyframe"]
    assert (HEADER.data.hex(), HEADER.fields) == (header["hex"], header["fields"])
    assert list(CACHE_CODES.values()) == vectors["codes.cache_error_code"]["fields"]["values"][1:]
    assert list(SCHEMA_CODES.values()) == vectors["codes.schema_error_code"]["fields"]["values"][1:]
