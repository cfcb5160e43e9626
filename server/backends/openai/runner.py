"""The runner for OpenAI-compatible upstreams: a session is a conversation kept here and sent with every prompt."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from server.backends.emitter import Emitter
from server.backends.openai.chunks import Answer
from server.backends.openai.content import user_content
from server.backends.openai.conversation import Conversation, Shelf
from server.backends.openai.upstream import Upstream
from server.backends.settings import Mode, Model, Settings
from sessions.errors import RunnerError, Unsupported
from sessions.operation import Operation, PromptRequest
from sessions.runner import Capabilities, SessionHost, SessionSpec, StoredSession, TurnResult

__all__ = ["OpenAIRunner"]

_RESOURCE_NOT_FOUND: Final = -32002
_METHOD_NOT_FOUND: Final = -32601
_INTERNAL_ERROR: Final = -32603
_MODELS_FRESH: Final = 60.0
"""Seconds the list of models is believed."""
_CAPABILITIES: Final = Capabilities(
    load_session=True,
    resume_session=True,
    list_sessions=True,
    fork_session=True,
    prompt={"image": True, "embeddedContext": True},
)
_MODES: Final = (Mode("default", "Default", "The model talks; it has no tools to ask for"),)


@attrs.frozen(slots=True, kw_only=True)
class _Options:
    model: str | None
    system_prompt: str | None
    parameters: Mapping[str, Any]
    max_messages: int
    max_bytes: int


class OpenAIRunner:
    """Streams ``POST {base_url}/chat/completions``; a `Runner`.

    ``model`` defaults to the first the upstream lists. ``parameters`` are added to every request (``temperature`` …). A
    conversation keeps its last ``max_messages`` messages within ``max_bytes``; closed ones stay loadable in this process, at
    most ``shelf_sessions`` within ``shelf_bytes``. ``idle_timeout``: seconds the upstream may be silent in an answer.

    Raises `AgentStartError` when httpx2, the extra ``client``, is not installed, ``ValueError`` for a bad URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        system_prompt: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        name: str = "openai",
        max_messages: int = 200,
        max_bytes: int = 8 * 2**20,
        shelf_sessions: int = 256,
        shelf_bytes: int = 64 * 2**20,
        connect_timeout: float = 10.0,
        idle_timeout: float = 300.0,
    ) -> None:
        self._upstream = Upstream(base_url, api_key, connect_timeout=connect_timeout, idle_timeout=idle_timeout)
        self._name = name
        self._options = _Options(
            model=model,
            system_prompt=system_prompt,
            parameters=dict(parameters or {}),
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        self._shelf = Shelf(shelf_sessions, shelf_bytes)
        self._live: dict[str, _OpenAISession] = {}
        self._models: tuple[Model, ...] = ()
        self._models_at = float("-inf")

    @property
    def name(self) -> str:
        return self._name

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns the connection pool."""
        async with self._upstream.open():
            task_status.started()
            await trio.sleep_forever()

    async def capabilities(self) -> Capabilities:
        await trio.lowlevel.checkpoint()
        return _CAPABILITIES

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> _OpenAISession:
        await self._refresh_models()
        if spec.mode is not None:
            # Refused before a stored conversation is taken from its place.
            Settings(_MODES).set_mode(spec.mode)
        given = spec.agent_session_id if spec.start != "fork" else None
        session_id = given or str(uuid.uuid4())
        conversation = self._conversation(spec)
        settings = self._settings(spec.model or conversation.model)
        session = _OpenAISession(self, self._upstream, self._options, session_id, host, settings, conversation)
        self._live[session_id] = session
        try:
            host.bind(session_id)
            if spec.start == "load" and host.wants_history:
                await session.replay()
        except BaseException:
            self.release(session_id, session)
            raise
        return session

    async def list_sessions(self, cwd: str) -> Sequence[StoredSession]:
        await trio.lowlevel.checkpoint()
        live = [(session_id, session.conversation) for session_id, session in self._live.items()]
        return [StoredSession(key, held.cwd) for key, held in [*live, *self._shelf.items()] if held.cwd == cwd]

    def release(self, session_id: str, session: _OpenAISession) -> None:
        """A session is closed: its conversation goes on the shelf."""
        if self._live.get(session_id) is session:
            del self._live[session_id]
            self._shelf.put(session_id, session.conversation)

    def _conversation(self, spec: SessionSpec) -> Conversation:
        if spec.start == "new":
            return Conversation(spec.cwd, max_messages=self._options.max_messages, max_bytes=self._options.max_bytes)
        wanted = spec.agent_session_id or ""
        if spec.start == "fork" and (live := self._live.get(wanted)) is not None:
            return live.conversation.copy(spec.cwd)
        held = self._shelf.take(wanted)
        if held is None:
            raise RunnerError(f"Resource not found: {wanted}", _RESOURCE_NOT_FOUND)
        if spec.start == "fork":
            self._shelf.put(wanted, held)
            return held.copy(spec.cwd)
        return held

    def _settings(self, wanted: str | None) -> Settings:
        models = self._models
        chosen = wanted or self._options.model or (models[0].id if models else None)
        if chosen is not None and chosen not in [model.id for model in models]:
            models = (Model(chosen, chosen), *models)
        return Settings(_MODES, models, "default", chosen)

    async def _refresh_models(self) -> None:
        now = trio.current_time()
        if now - self._models_at < _MODELS_FRESH:
            await trio.lowlevel.checkpoint()
            return
        self._models = await self._upstream.models() or self._models
        self._models_at = now


class _OpenAISession:
    def __init__(
        self,
        runner: OpenAIRunner,
        upstream: Upstream,
        options: _Options,
        session_id: str,
        host: SessionHost,
        settings: Settings,
        conversation: Conversation,
    ) -> None:
        self._runner = runner
        self._upstream = upstream
        self._options = options
        self._session_id = session_id
        self._host = host
        self._settings = settings
        self.conversation = conversation

    def state(self) -> Mapping[str, Any]:
        return self._settings.state()

    async def run(self, operation: Operation) -> TurnResult:
        request = operation.request
        if not isinstance(request, PromptRequest):
            raise Unsupported(f"A chat upstream carries out prompts, not {type(request).__name__}")
        if self._settings.model is None:
            raise RunnerError("No model: the upstream lists none and none was configured", _INTERNAL_ERROR)
        self.conversation.add({"role": "user", "content": user_content(request.blocks)})
        model = self._settings.current_model
        answer = Answer(Emitter(self._host, self._settings), model.context if model is not None else 0)
        try:
            await self._upstream.complete(self._body(), answer)
            await answer.finish()
        finally:
            # Also what was said before a cancel or an error has been said.
            if answer.text:
                self.conversation.add({"role": "assistant", "content": answer.text})
        return TurnResult(answer.stop_reason)

    def _body(self) -> dict[str, Any]:
        system = self._options.system_prompt
        first = [{"role": "system", "content": system}] if system else []
        return {
            **self._options.parameters,
            "model": self._settings.model,
            "messages": [*first, *self.conversation.messages()],
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def replay(self) -> None:
        """Show the conversation again, as far as it is text."""
        emit = Emitter(self._host, self._settings)
        for message in self.conversation.messages():
            kind = "user_message_chunk" if message["role"] == "user" else "agent_message_chunk"
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                if part["type"] == "text":
                    await emit.update({"sessionUpdate": kind, "content": {"type": "text", "text": part["text"]}})

    async def set_model(self, model_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        result = self._settings.set_model(model_id)
        self.conversation.model = model_id
        return result

    async def set_mode(self, mode_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return self._settings.set_mode(mode_id)

    async def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        result = self._settings.set_config_option(config_id, value)
        self.conversation.model = self._settings.model
        return result

    async def extension(self, method: str, params: Mapping[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        raise Unsupported(f"Method not found: {method}", _METHOD_NOT_FOUND, {"method": method})

    async def aclose(self) -> None:
        self._runner.release(self._session_id, self)
        await trio.lowlevel.checkpoint()
