"""The public suite against a running server (issue 5): every mandatory, optional and experimental preview3 case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from protocol.nnrp.enums import OperationState
from protocol.nnrp.machines.credit import Window
from protocol.nnrp.machines.operations import OperationTable
from server.cli import main
from server.conformance.case import CaseOutcome, Evidence, Verdict, both
from server.conformance.live import LIVE, Place, open_place, run_live_cases
from server.conformance.live import judge as judging
from server.nnrp import running
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.running import Running
from server.nnrp.session import ServedSession
from server.nnrp.submit import Answer, Submit
from server.nnrp.workers import EchoWorker
from tests.conformance.test_nnrp_conformance import IDS, plan, results_of
from tests.support.nnrp import serving_nnrp


def test_every_case_has_a_live_one() -> None:
    assert set(LIVE) == set(IDS)


def test_the_whole_suite_against_our_own_server(tmp_path: Path) -> None:
    """Issue 5, Done when: every case passes by running against the live server, over TCP and QUIC."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan(tmp_path, *IDS, "l9.invented.case")))
    done = CliRunner().invoke(main, ["nnrp", "conformance", "--plan", str(path)])
    assert done.exit_code == 0, done.output
    results = results_of(tmp_path / "planned.json")
    assert {each: results[each]["outcome"] for each in IDS} == dict.fromkeys(IDS, "pass")
    assert results["l9.invented.case"]["outcome"] == "skip"
    evidence = Path(results["l3.transport.quic.minimum"]["evidence_paths"][0]).read_text()
    assert "connected to quic" in evidence
    wire = Path(results["l1.result_push.basic.terminal.validation"]["evidence_paths"][0]).read_text()
    assert "against the running server" in wire
    assert "received Header(msg_type=<MessageType.RESULT_PUSH" in wire


async def test_a_server_that_runs_elsewhere() -> None:
    """``--url``: nothing is asked of the service itself; only QUIC, which nobody named, is left open."""
    async with serving_nnrp() as served, open_place(served.url) as place:
        assert place.service is None
        cases = ("l1.handshake.basic", "l1.flow_update.preview3", "l3.transport.quic.minimum")
        found = {name: verdict for name, (verdict, _) in (await run_live_cases(place, cases)).items()}
    assert [found[each].outcome for each in cases] == [CaseOutcome.PASS, CaseOutcome.PASS, CaseOutcome.SKIP]
    assert "--quic-url" in found["l3.transport.quic.minimum"].message


async def test_a_server_that_wants_a_token() -> None:
    policy = ServingPolicy(authenticate=token_check("secret"))
    async with serving_nnrp(policy) as served, open_place(served.url, token="secret") as place:
        found = await run_live_cases(place, ["l1.handshake.basic", "l1.session.open_close"])
        assert {verdict.outcome for verdict, _ in found.values()} == {CaseOutcome.PASS}
    async with serving_nnrp(policy) as served, open_place(served.url, token="wrong") as place:
        ((verdict, _),) = (await run_live_cases(place, ["l1.handshake.basic"])).values()
        assert verdict.outcome is CaseOutcome.FAIL


async def test_a_server_that_is_not_there() -> None:
    """Every case is judged, none breaks the run."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    async with open_place(f"tcp://127.0.0.1:{port}") as place:
        found = await run_live_cases(place, ["l1.handshake.basic", "l3.transport.tcp.minimum"])
        assert {verdict.outcome for verdict, _ in found.values()} == {CaseOutcome.ERROR}


# Broken servers are noticed


def _twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every result is sent twice."""
    sending = ServedSession.send

    def send(self: ServedSession, *args: Any) -> None:
        sending(self, *args)
        sending(self, *args)

    monkeypatch.setattr(ServedSession, "send", send)


def _no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "overrun", lambda self, now, background=False: None)


def _cancels_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperationTable, "targets", lambda self, *_: tuple(self))


def _forgets_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are swallowed."""

    async def partial(self: Running, answer: Any) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    monkeypatch.setattr(Running, "partial", partial)


def _says_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every drop says failed."""
    making = running.drop_parts

    def drop_parts(*args: Any, **more: Any) -> Any:
        return making(*args, **more | {"state": OperationState.FAILED})

    monkeypatch.setattr(running, "drop_parts", drop_parts)


def _wrong_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoWorker, "answer_nowait", lambda self, submit: _empty(submit))


def _empty(submit: Submit) -> Any:
    return Answer(profile_id=submit.session.terms.profile_id)


BROKEN: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (_twice, "l1.result_push.basic.terminal.validation"),
    (_no_credit, "l1.connection.session_container.parallel_open.validation"),
    (_cancels_all, "l1.operation.cancel_scope.validation"),
    (_forgets_parts, "l1.token_profile.partial.validation"),
    (_says_failed, "l1.operation.lifecycle.terminal_resolution.validation"),
    (_wrong_echo, "l2.payload.typed.buffer_ownership.relative_region.validation"),
]


@pytest.mark.parametrize(("break_it", "identifier"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_broken_server_fails(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], identifier: str
) -> None:
    """The cases look at the server: break it, and they fail."""
    monkeypatch.setattr(judging, "PATIENCE", 3.0)
    break_it(monkeypatch)
    async with serving_nnrp() as served:
        place = Place(served.url, service=served.service)
        ((verdict, _),) = (await run_live_cases(place, [identifier])).values()
    assert verdict.outcome in (CaseOutcome.FAIL, CaseOutcome.ERROR), verdict


def test_the_worse_of_two_verdicts() -> None:
    good, bad = Verdict(CaseOutcome.PASS), Verdict(CaseOutcome.FAIL, "expectation", "x")
    missing = Verdict(CaseOutcome.SKIP, message="no")
    assert both(good, good) is good
    assert both(bad, good) is bad
    assert both(good, bad) is bad
    assert both(missing, good) is good
    assert both(good, missing) is missing


async def test_a_crash_of_a_case_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(place: Place, evidence: Evidence) -> None:
        raise KeyError("lost")

    monkeypatch.setitem(LIVE, "made.up", crash)
    async with serving_nnrp() as served:
        ((verdict, _),) = (await run_live_cases(Place(served.url), ["made.up"])).values()
    assert (verdict.outcome, verdict.failure_kind) == (CaseOutcome.ERROR, "KeyError")


def test_two_live_cases_cannot_share_an_id() -> None:
    with pytest.raises(ValueError, match="two live cases"):
        judging.live_case("l1.handshake.basic")(LIVE["l1.handshake.basic"])
