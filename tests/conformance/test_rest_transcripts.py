"""The recorded REST exchanges of the shipped daemon, replayed against this server with equal meaning.

Every deviation is a named edit here, with what decides it:

| transcript, step | deviation | decided by |
| --- | --- | --- |
| 01, 13: capabilities | `features`, `supportedLanguages`, `workspaces` and three limits are what *this* server has | REST-013 |
| 07 step 1, 30 | the answer to a create has `eventEpoch` besides (further fields are allowed) | REST-022 |
| 07 stream | events 22 and 23: the recorded product echoes a rename through its agent | product |
| 07 step 14 | the list has the sessions of the recording machine | recording |
| 07 step 26 | other words in `error`; clients branch on `code` | REST-002 |
| 07 step 38 | an unknown route answers JSON, not HTML | rest.md 11 #10 |
| 08 step 14 | the slot of a removed prompt is free at once: 202 where the daemon still said 503 | ACP-218 |
| 08 step 15 to 17, stream | with that, one more prompt runs; cancelled ones are told as cancelled at the close, not as errors | ACP-218, REST-050 |
| 09 | votes are voted on a turn prompted over REST; a late vote is told the `outcome` besides | issue 2 |
"""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from tests.conformance.rest_replay import RecordedAgent, RestReplay
from tests.server.rest.conftest import start_api


def _without(*keys: str) -> Any:
    return lambda body: {key: value for key, value in body.items() if key not in keys}


def _capabilities(body: dict[str, Any]) -> dict[str, Any]:
    product = ("maxRegisteredWorkspaces", "maxChannelControlWorkspaces", "maxWorkspaceFileUploadBytes")
    kept = _without("features", "supportedLanguages", "workspaces")(body)
    return {**kept, "limits": _without(*product)(body["limits"])}


async def test_01_capabilities_and_health(autojump_clock: MockClock) -> None:
    async with start_api(RecordedAgent(), workspace=("/home/project",)) as api:
        replay = RestReplay(api, "01")
        replay.edits = {2: _without("idleSinceMs"), 3: _capabilities}
        await replay.run()


async def test_07_create_prompt_events(autojump_clock: MockClock) -> None:
    async with start_api(RecordedAgent(), workspace=("/home/project",)) as api:
        replay = RestReplay(api, "07")
        replay.pauses = {4: 1.0, 5: 0.2, 6: 0.2, 7: 0.65, 8: 0.2}

        def stream(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
            kept = [each for each in values if each["id"] not in (22, 23)]
            return [*kept[:-1], {**kept[-1], "id": 22}]

        def listed(body: dict[str, Any]) -> dict[str, Any]:
            return {"sessions": body["sessions"][:1]}

        def loaded(body: dict[str, Any]) -> dict[str, Any]:
            journal = [each for each in body["liveJournal"] if each["id"] < 22]
            return {**body, "liveJournal": journal, "lastEventId": 21}

        replay.edits = {
            2: stream,
            14: listed,
            15: loaded,
            16: lambda body: {**body, "lastEventId": 21},
            26: _without("error"),
            38: lambda _: {"error": "Not found"},
        }
        await replay.run()


async def test_08_prompt_queue_full(autojump_clock: MockClock) -> None:
    agent = RecordedAgent()
    agent.commands_at_start = True
    async with start_api(agent, workspace=("/home/project",)) as api:
        replay = RestReplay(api, "08")
        recorded = replay.steps[0]["request"]["line"].split("/")[2]
        replay.names[recorded] = (await api.create())["sessionId"]
        replay.pauses = dict.fromkeys(range(2, 17), 0.001)
        # The stream is compared up to the refusal and the removal; what follows is decided otherwise (see above).
        replay.edits = {2: lambda values: [each for each in values if each["id"] <= 6]}
        replay.skip = {14, 16}
        next(each for each in replay.steps if each["step"] == 2)["response"]["stream_closed_by"] = "client"
        await replay.run()


async def test_08_the_slot_of_a_removed_prompt_is_free(autojump_clock: MockClock) -> None:
    """ACP-218: where the recording and we differ."""
    async with start_api(RecordedAgent(), workspace=("/home/project",)) as api:
        session_id = (await api.create())["sessionId"]
        ids = [await api.submit(session_id, "SLOW20x150") for _ in range(5)]
        assert (await api.prompt(session_id, "one too many")).status == 503
        assert (await api.delete(f"/session/{session_id}/pending-prompts/{ids[4]}")).json() == {"removed": True}
        assert (await api.prompt(session_id, "after removal")).status == 202


async def test_09_votes_on_rest(autojump_clock: MockClock) -> None:
    async with start_api(RecordedAgent(), workspace=("/home/project",)) as api:
        replay = RestReplay(api, "09")
        session_id = (await api.create())["sessionId"]
        vote = next(each for each in replay.steps if each["step"] == 14)["request"]["line"].split("/")
        replay.names[vote[2]] = session_id
        replay.skip = {2}
        async with api.events(session_id) as stream:
            await api.submit(session_id, "TOOL please")
            asked = (await stream.until("permission_request"))[-1]
            replay.names[vote[4].split(" ")[0]] = asked.data["requestId"]
            # The wording of a refused option is the product's.
            replay.edits = {14: _without("error")}
            await replay.run()
            await trio.sleep(1)
            types = [each.type for each in await stream.until("permission_already_resolved", 2)]
        assert types.count("permission_resolved") == 1


async def test_13_bearer_token_and_unlimited_queue(autojump_clock: MockClock) -> None:
    settings: dict[str, Any] = {
        "token": "transcript-token",
        "event_ring_size": 40,
        "max_pending_prompts_per_session": 0,
    }
    async with start_api(RecordedAgent(), workspace=("/home/project",), **settings) as api:
        replay = RestReplay(api, "13")
        replay.edits = {5: _capabilities}
        await replay.run()


async def test_14_ring_eviction(autojump_clock: MockClock) -> None:
    agent = RecordedAgent()
    agent.commands_at_start = True
    async with start_api(agent, workspace=("/home/project",), event_ring_size=40) as api:
        replay = RestReplay(api, "14")
        client_id = "client_e85a6eae-a06d-4495-9a2d-7f9a90e5fa18"
        created = await api.create()
        replay.names[replay.steps[0]["request"]["line"].split("/")[2]] = created["sessionId"]
        replay.names[client_id.removeprefix("client_")] = created["clientId"].removeprefix("client_")
        prompt_id = await api.submit(created["sessionId"], "SLOW60x5", X_Qwen_Client_Id=created["clientId"])
        await api.outcome(created["sessionId"], prompt_id)
        await replay.run()


async def test_16_body_and_header_rejections(autojump_clock: MockClock) -> None:
    async with start_api(RecordedAgent(), workspace=("/home/project",)) as api:
        await RestReplay(api, "16").run()
