"""What an agent does besides talking, in token sessions: structured events and tool deltas under schemas of their own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from client.nnrp import NnrpOperationEnded, NnrpSession, SubmitOptions, open_nnrp
from client.nnrp.results import Result
from protocol.nnrp.agent_schemas import AGENT_EVENT, AGENT_SCHEMAS, AGENT_TOOL, announcements
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    DescriptorFlags,
    OperationState,
    PayloadKind,
    SessionFlags,
    StopReason,
    StreamSemantics,
)
from protocol.nnrp.extensions import NO_FEATURES
from protocol.nnrp.payloads import SchemaObject, schema_hash
from tests.server.nnrp.test_nnrp_application import serving
from tests.support.openai_stub import OpenAIStub


async def turn(session: NnrpSession, prompt: bytes) -> list[Result]:
    return [each async for each in await session.submit(prompt)]


def updates(results: list[Result]) -> dict[str, list[dict[str, Any]]]:
    """Session updates that came as events, by their name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in results:
        if each.event is not None and each.event["type"] == "session_update":
            update = each.event["data"]["update"]
            found.setdefault(update["sessionUpdate"], []).append(update)
    return found


def test_our_schemas_are_whole() -> None:
    """nnrp-wire 11.2, 11.3: the header fits its body, the hash is a digest of it, the key of the put is the schema's."""
    assert len(announcements()) == 2
    for message, content in announcements():
        schema = SchemaObject.parse(content)
        assert schema.descriptor == AGENT_SCHEMAS[message.object_kind]
        assert (message.cache_key_hi, message.cache_key_lo) == (schema.descriptor.schema_id, 1)
        assert schema.descriptor.schema_hash == schema_hash(schema.body)


async def test_plans_usage_and_tools_are_told(tmp_path: Path) -> None:
    """nnrp-extensions, Token chunks; issue 5: plans and usage as structured_event, tool calls as tool_delta, JSON as REST
    shows it, each under its schema with the override flag; the text is what it was."""
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        results = await turn(session, b"tool")
        found = updates(results)
        assert found["plan"]
        assert found["usage_update"][0]["used"] > 0
        (call,) = found["tool_call"]
        assert {each["toolCallId"] for each in found["tool_call_update"]} == {call["toolCallId"]}
        assert found["tool_call_update"][-1]["status"] == "completed"
        assert "agent_message_chunk" not in found, "text travels as text"
        for each in results:
            if each.event is None:
                continue
            (payload,) = each.payloads
            plan = payload.descriptor
            assert isinstance(plan, TypedPayloadDescriptor)
            tool = each.kinds is PayloadKind.TOOL_DELTA
            schema = AGENT_TOOL if tool else AGENT_EVENT
            assert (plan.profile_id, plan.schema_id, plan.schema_version) == (2, schema.schema_id, 1)
            assert plan.stream_semantics is (StreamSemantics.TOOL_UPDATE if tool else StreamSemantics.EVENT)
            assert plan.descriptor_flags & DescriptorFlags.SCHEMA_OVERRIDE
            assert each.text == ""
            assert each.event_id == each.event["id"]
        ids = [each.event_id for each in results if each.payloads]
        assert ids == sorted(set(ids))


async def test_the_schemas_are_installed_before_the_first_event(tmp_path: Path) -> None:
    """11.3 carriage, 11.4: the client's registry binds what it is sent."""
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        results = await turn(session, b"tool")
        store = session.machine.store
        assert store is not None
        for each in results:
            for payload in each.payloads:
                plan = payload.descriptor
                assert isinstance(plan, TypedPayloadDescriptor)
                override = bool(plan.descriptor_flags & DescriptorFlags.SCHEMA_OVERRIDE)
                schema = store.schemas.bind(
                    plan.profile_id,
                    plan.schema_id,
                    plan.schema_version,
                    override=override,
                    session=session.machine.binding,
                )
                assert schema is not None
                assert schema.key == (plan.schema_id, plan.schema_version)


@pytest.mark.parametrize("flags", [SessionFlags(0), SessionFlags.ALLOW_SCHEMA_OVERRIDE], ids=["none", "no leases"])
async def test_where_schemas_cannot_be_installed_events_have_none(tmp_path: Path, flags: SessionFlags) -> None:
    """13.10 item 4, 11.4: without leases or override there is no schema; the JSON then comes with profile and schema 0."""
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session(flags=flags)
        results = await turn(session, b"tool")
        assert updates(results)["tool_call"]
        for each in results:
            if each.event is not None:
                plan = each.payloads[0].descriptor
                assert isinstance(plan, TypedPayloadDescriptor)
                assert (plan.profile_id, plan.schema_id, plan.descriptor_flags) == (0, 0, 0)
        assert session.machine.store is None


async def test_text_clients_get_text_only(tmp_path: Path) -> None:
    """nnrp-extensions: what was not granted is not sent: no events, no hints, no thoughts."""
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session(features=NO_FEATURES)
        results = await turn(session, b"tool")
        assert all(each.kinds is PayloadKind.TOKEN_CHUNK for each in results)
        assert all(each.event is None for each in results)


async def test_a_resumed_session_is_told_its_schemas_again(tmp_path: Path) -> None:
    """13.7 with 11.3: a resumed session is a new one on its connection; its client has the schemas before what comes."""
    async with serving(tmp_path) as (application, url), open_nnrp(url) as connection:
        session = await connection.open_session(resumable=True)
        await turn(session, b"one")
        machine = session.machine
        assert application.nnrp is not None
        (link,) = application.nnrp.service.links
        link._lose()
        results = await turn(session, b"tool")
        assert session.machine is not machine
        assert session.machine.store is not None
        assert len(session.machine.store.schemas.own()) == 2
        assert updates(results)["tool_call"]


async def test_a_prompt_segment_is_put_once_and_referred_to(tmp_path: Path) -> None:
    """12.7 prompt_segment: the agent reads it ahead of what is submitted."""
    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        lease = await session.cache.put((0, 1), b"echo the cached part, ")
        for number in (b"1", b"2"):
            submission = await session.submit(number, options=SubmitOptions(objects=(lease,)))
            said = "".join([each.text async for each in submission if each.hint is None or not each.hint.channel])
            assert "the cached part, " + number.decode() in said


async def test_an_upstream_is_a_token_stream(tmp_path: Path) -> None:
    """Issue 5, Runners: an OpenAI-compatible upstream behind NNRP as llm.chat.delta.v1: its deltas as chunks, contiguous, its
    usage as an event, its finish reason as the stop reason, the history with the next prompt; a cancel reaches it."""
    with OpenAIStub(pause_s=0.02) as stub:
        async with serving(tmp_path, upstream=stub.url) as (_, url), open_nnrp(url) as connection:
            session = await connection.open_session()
            results = await turn(session, b"hi")
            assert [each.text for each in results if each.text] == ["Hello", " from", " the", " stub."]
            spans = [(each.hint.sequence_start, each.hint.sequence_end) for each in results if each.hint is not None]
            assert all(end == start for (_, end), (start, _) in pairwise(spans))
            assert updates(results)["usage_update"][0]["used"] == 15
            last = results[-1]
            assert last.final
            assert last.hint is not None
            assert last.hint.stop_reason is StopReason.EOS
            await turn(session, b"again")
            roles = [each["role"] for each in stub.requests[1]["messages"]]
            assert roles == ["user", "assistant", "user"]
            running = await session.submit(b"hold")
            await anext(running)
            running.cancel()
            with pytest.raises(NnrpOperationEnded) as ended:
                await running.result()
            assert ended.value.state is OperationState.CANCELLED


async def test_a_turn_whose_end_fails_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5: a defect of ours costs its operation. What comes next in the ring waits for the end before it."""
    failed = trio.Event()

    def fail(*args: object, **values: object) -> None:
        failed.set()
        raise ValueError("a defect")

    async with serving(tmp_path) as (_, url), open_nnrp(url) as connection:
        session = await connection.open_session()
        with monkeypatch.context() as broken, trio.fail_after(10):
            broken.setattr("server.nnrp.running.finish", fail)
            await session.submit(b"hello")
            await failed.wait()
        with trio.fail_after(10):
            assert (await turn(session, b"hello"))[-1].final
