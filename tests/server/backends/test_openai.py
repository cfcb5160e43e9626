"""The runner for OpenAI-compatible upstreams, against stubs on loopback."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
import trio

from server.backends.openai import OpenAIRunner
from server.backends.openai.content import user_content
from server.backends.openai.conversation import Conversation, Shelf
from sessions.errors import AgentStartError, RunnerError, Unsupported
from sessions.operation import Operation, PromptRequest
from sessions.runner import Runner, RunnerSession, TurnResult
from tests.support.fake_host import FakeHost, open_session, prompt, run_prompt, running, texts
from tests.support.openai_stub import OpenAIStub

# Over the real loopback and real threads: real time


@asynccontextmanager
async def against_stub(**settings: Any) -> AsyncIterator[tuple[OpenAIStub, OpenAIRunner, FakeHost, RunnerSession]]:
    with OpenAIStub(pause_s=0.05) as stub:
        runner = OpenAIRunner(stub.url, **settings)
        async with running(runner):
            host = FakeHost("/w")
            yield stub, runner, host, await open_session(runner, host)


class Canned:
    """A server that gives every completion the same bytes, and notes when its client went away."""

    def __init__(self, *events: object, status: str = "200 OK", raw: bytes | None = None, hold: bool = False) -> None:
        body = b"".join(
            b"data: " + (each if isinstance(each, bytes) else msgspec.json.encode(each)) + b"\n\n" for each in events
        )
        self.answer = raw if raw is not None else body
        self.status = status
        self.hold = hold
        self.bodies: list[Any] = []
        self.heads: list[bytes] = []
        self.client_gone = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            buffer = b""
            while b"\r\n\r\n" not in buffer:
                buffer += await stream.receive_some(65536)
            head, _, body = buffer.partition(b"\r\n\r\n")
            self.heads.append(head)
            if head.startswith(b"GET"):
                await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(body) < length:
                body += await stream.receive_some(65536)
            self.bodies.append(msgspec.json.decode(body))
            kind = b"text/event-stream" if self.status.startswith("200") else b"application/json"
            first = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nConnection: close\r\n\r\n" % (self.status.encode(), kind)
            with suppress(trio.BrokenResourceError):
                # The client goes as soon as it has seen enough.
                await stream.send_all(first + self.answer)
            if self.hold:
                assert await stream.receive_some(1) == b""
                self.client_gone.set()


@asynccontextmanager
async def against(canned: Canned, **settings: Any) -> AsyncIterator[tuple[FakeHost, RunnerSession]]:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, canned.serve, [listener])
        port = listener.socket.getsockname()[1]
        runner = OpenAIRunner(f"http://127.0.0.1:{port}", **{"model": "m", **settings})
        async with running(runner):
            host = FakeHost("/w")
            yield host, await open_session(runner, host)
        nursery.cancel_scope.cancel()


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def finish(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


async def test_a_turn_and_the_history_of_the_next() -> None:
    """Issue 2, runner 3: streaming, usage, and the conversation sent along with the next prompt."""
    async with against_stub(system_prompt="be brief", parameters={"temperature": 0}) as (stub, runner, host, session):
        assert isinstance(runner, Runner)
        assert await run_prompt(session, "hi") == TurnResult("end_turn")
        assert texts(host) == ["Hello", " from", " the", " stub."]
        usage = host.updates[-1]
        assert (usage["sessionUpdate"], usage["used"]) == ("usage_update", 15)
        assert usage["_meta"]["usage"] == {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        await run_prompt(session, "echo again")
        assert stub.requests[1]["messages"] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello from the stub."},
            {"role": "user", "content": "echo again"},
        ]
        assert (stub.requests[0]["model"], stub.requests[0]["temperature"]) == ("stub-model", 0)


async def test_cancel_closes_the_upstream_request_at_once() -> None:
    """Issue 2, runner 3: the model must not go on computing for nobody."""
    async with against(canned := Canned(delta(content="one"), hold=True)) as (host, session):
        operation = prompt("hold")
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                with operation.scope:
                    await session.run(operation)

            nursery.start_soon(run)
            await host.wait_for(lambda: texts(host) == ["one"])
            operation.scope.cancel()
            with trio.fail_after(1):
                await canned.client_gone.wait()
        assert operation.scope.cancelled_caught


async def test_after_a_cancel_the_next_prompt_works_and_knows_what_was_said() -> None:
    async with against_stub() as (stub, _, host, session):
        operation = prompt("hold")
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                with operation.scope:
                    await session.run(operation)

            nursery.start_soon(run)
            await host.wait_for(lambda: texts(host) == ["Hello"])
            operation.scope.cancel()
        assert (await run_prompt(session, "echo on")).stop_reason == "end_turn"
        assert stub.requests[1]["messages"][1] == {"role": "assistant", "content": "Hello"}
        assert stub.cut_by_peer == 1


async def test_thoughts_tools_and_refusals() -> None:
    """reasoning_content and reasoning become thoughts; tool_calls a tool call nobody here can run."""
    events = [
        delta(reasoning_content="a"),
        delta(reasoning="b", content=None),
        delta(
            tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"p'}}]
        ),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '":1}'}}]),
        delta(refusal="no"),
        finish("tool_calls"),
        b"[DONE]",
    ]
    async with against(Canned(*events)) as (host, session):
        assert await run_prompt(session, "x") == TurnResult("end_turn")
        assert (texts(host, "agent_thought_chunk"), texts(host)) == (["a", "b"], ["no"])
        call, update = (u for u in host.updates if "toolCallId" in u)
        assert (call["title"], call["status"], call["toolCallId"]) == ("look", "pending", "c1")
        assert (update["rawInput"], update["status"]) == ({"p": 1}, "failed")


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("something", "end_turn")],
)
async def test_stop_reasons(reason: str, stop_reason: str) -> None:
    """ACP-197."""
    async with against(Canned(delta(content="x"), finish(reason))) as (_, session):
        assert (await run_prompt(session, "x")).stop_reason == stop_reason


async def test_what_models_say_that_is_no_text() -> None:
    """C-048: half a surrogate pair becomes U+FFFD, a pair its character; usage may be null."""
    events = [
        b'{"choices":[{"delta":{"content":"\\ud83d"}}]}',
        b'{"choices":[{"delta":{"content":"\\ud83d\\ude42"}}]}',
        finish("stop"),
        {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": 3, "total_tokens": None}},
        b"[DONE]",
    ]
    async with against(Canned(*events)) as (host, session):
        assert await run_prompt(session, "x") == TurnResult("end_turn")
        assert texts(host) == ["\ufffd", "🙂"]
        assert host.updates[-1]["used"] == 3


@pytest.mark.parametrize(
    ("canned", "words", "kind"),
    [
        (Canned(status="401 Unauthorized", raw=b'{"error":{"message":"bad key"}}'), "401 bad key", "auth_env_error"),
        (Canned(status="429 Too Many", raw=b'{"error":"slow down"}'), "429 slow down", None),
        (Canned(status="502 Bad Gateway", raw=b"<html>nope"), "502 <html>nope", None),
        (Canned({"error": {"message": "out of memory"}}), "out of memory", None),
        (Canned(delta(content="x")), "in the middle", "protocol_error"),
        (Canned(b"{nonsense"), "Malformed", "protocol_error"),
        (Canned(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"), "Malformed", "protocol_error"),
        (Canned(raw=b"data: " + b"x" * (17 * 2**20)), "Malformed", "protocol_error"),
    ],
    ids=["401", "429", "502", "error in the stream", "cut", "no JSON", "deep", "no end"],
)
async def test_upstream_errors(canned: Canned, words: str, kind: str | None) -> None:
    """Issue 2: a clear error, and the next prompt works."""
    async with against(canned) as (_, session):
        with pytest.raises(RunnerError) as caught:
            await run_prompt(session, "x")
        assert words in caught.value.message
        assert caught.value.error_kind == kind
        canned.status, canned.answer = "200 OK", b"data: [DONE]\n\n"
        assert (await run_prompt(session, "x")).stop_reason == "end_turn"


async def test_nobody_listens() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    runner = OpenAIRunner(f"http://127.0.0.1:{port}/v1", model="m")
    async with running(runner):
        session = await open_session(runner, FakeHost())
        with pytest.raises(RunnerError) as caught:
            await run_prompt(session, "x")
        assert caught.value.error_kind == "blocked_egress"


async def test_a_silent_upstream_is_given_up() -> None:
    async with against(Canned(delta(content="x"), hold=True), idle_timeout=0.3) as (host, session):
        with pytest.raises(RunnerError, match="ReadTimeout"):
            await run_prompt(session, "x")
        assert texts(host) == ["x"]


async def test_models() -> None:
    """ACP-191: the upstream's list, best effort; REST-120: an unknown one is refused."""
    async with against_stub(model="mine") as (stub, _, _, session):
        listed = session.state()["models"]
        assert [model["modelId"] for model in listed["availableModels"]] == ["mine", "stub-model"]
        await session.set_model("stub-model")
        await run_prompt(session, "hi")
        assert stub.requests[0]["model"] == "stub-model"
        with pytest.raises(RunnerError) as caught:
            await session.set_model("none")
        assert caught.value.code == -32603
        result = await session.set_config_option("model", "mine")
        assert [option["currentValue"] for option in result["configOptions"]] == ["default", "mine"]
        await session.set_mode("default")
        with pytest.raises(RunnerError):
            await session.set_mode("yolo")
        with pytest.raises(Unsupported):
            await session.extension("_x", {})


async def test_no_model_at_all() -> None:
    async with against(Canned(), model=None) as (_, session):
        with pytest.raises(RunnerError, match="No model"):
            await run_prompt(session, "x")


async def test_the_key_and_the_path() -> None:
    """A URL without a path gets ``/v1``; the key goes as bearer token."""
    async with against(canned := Canned(b"[DONE]"), api_key="k3y") as (_, session):
        await run_prompt(session, "x")
        assert canned.heads[-1].startswith(b"POST /v1/chat/completions HTTP/1.1")
        assert b"authorization: Bearer k3y" in canned.heads[-1].replace(b"Authorization", b"authorization")


async def test_closed_sessions_can_be_loaded_resumed_and_forked() -> None:
    """REST-030: load shows the conversation, resume does not, both go on with it."""
    async with against_stub() as (stub, runner, first, session):
        await run_prompt(session, "echo one")
        await session.set_model("stub-model")
        fork = FakeHost("/w")
        forked = await open_session(runner, fork, start="fork", agent_session_id=first.agent_session_id)
        assert fork.agent_session_id != first.agent_session_id
        await run_prompt(forked, "echo forked")
        assert len(stub.requests[-1]["messages"]) == 3
        await session.aclose()
        loaded = FakeHost("/w")
        again = await open_session(runner, loaded, start="load", agent_session_id=first.agent_session_id)
        assert [(u["sessionUpdate"], u["content"]["text"]) for u in loaded.updates] == [
            ("user_message_chunk", "echo one"),
            ("agent_message_chunk", "one"),
        ]
        await run_prompt(again, "echo two")
        assert len(stub.requests[-1]["messages"]) == 3
        await again.aclose()
        resumed = FakeHost("/w")
        await open_session(runner, resumed, start="resume", agent_session_id=first.agent_session_id)
        assert resumed.updates == []
        assert {each.agent_session_id for each in await runner.list_sessions("/w")} == {
            first.agent_session_id,
            fork.agent_session_id,
        }
        with pytest.raises(RunnerError) as caught:
            await open_session(runner, FakeHost(), start="load", agent_session_id="none")
        assert caught.value.code == -32002


async def test_another_wires_request_is_not_a_prompt() -> None:
    async with against(Canned()) as (_, session):
        with pytest.raises(Unsupported):
            await session.run(Operation(1, object()))


def test_content_blocks() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "look"},
        {"type": "image", "data": "QUJD", "mimeType": "image/jpeg"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "body"}},
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
        {"type": "audio", "data": "x"},
        {"type": "text"},
    ]
    assert user_content(blocks) == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}},
        {"type": "text", "text": "file:///a:\nbody"},
        {"type": "text", "text": "[b](file:///b)"},
    ]
    assert user_content(PromptRequest([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).blocks) == "a\nb"


def test_conversations_are_bounded_by_whole_turns() -> None:
    talk = Conversation("/", max_messages=4, max_bytes=10_000)
    for number in range(5):
        talk.add({"role": "user", "content": f"u{number}"})
        talk.add({"role": "assistant", "content": f"a{number}"})
    assert [message["content"] for message in talk.messages()] == ["u3", "a3", "u4", "a4"]
    talk.add({"role": "user", "content": "x" * 20_000})
    assert len(talk.messages()) == 1
    assert talk.bytes == len(msgspec.json.encode(talk.messages()[0]))


def test_the_shelf_is_bounded_twice() -> None:
    def talk(size: int) -> Conversation:
        made = Conversation("/", max_messages=10, max_bytes=10_000)
        made.add({"role": "user", "content": "x" * size})
        return made

    shelf = Shelf(max_count=2, max_bytes=1000)
    for name in "abc":
        shelf.put(name, talk(10))
    assert [name for name, _ in shelf.items()] == ["b", "c"]
    shelf.put("d", talk(950))
    assert [name for name, _ in shelf.items()] == ["d"]
    assert shelf.take("d") is not None
    assert shelf.take("d") is None


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(AgentStartError, match=r"moorline\[client\]"):
        OpenAIRunner("http://127.0.0.1:1/v1")


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "ftp://x", "http://"])
def test_a_bad_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        OpenAIRunner(url)
