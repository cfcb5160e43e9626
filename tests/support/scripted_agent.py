"""A scriptable ACP agent on stdio, for tests: standard library only, up in some 20 ms, misbehaves on demand.

How to start it
===============
`command(**options)` gives the argument list (for `AcpAgentRunner`, `--agent`, `subprocess`); `shell_line(**options)` the same
as one shell-quoted string. Options are one JSON object, read from ``argv[1]`` or the environment variable SCRIPTED_AGENT:

=====================  =================================================================================================
``initialize``         ``"never"``: no answer; ``"error"``: a JSON-RPC error; ``"exit"``: leave with code 1 at once;
                       ``"garbage"``: text without end on stdout; ``"late"``: answer after ``start_delay_ms``
``start_delay_ms``     pause before the answer to initialize (default 0)
``start``              steps (below) carried out before anything is read, without a session
``turns``              list of step lists; turn i of the process plays ``turns[min(i, last)]`` instead of reading the prompt
``state``              path of a JSON file: sessions are stored there and loadSession, list and resume are advertised
``load_replay``        number of updates a session/load replays when a stored session has no history (default 0)
``fork``, ``close``    true: advertise and serve session/fork, session/close
``early``              number of updates sent before session/new is answered (default 0)
``new_error``          ``[code, message, data?]``: session/new answers this error
``new_result``         an object: its members are added to the answer to session/new, or replace what is there
``session_id``         the id of every new session
``unanswered``         methods that are never answered
``list_result``        what session/list answers
``no_modes``           true: session/new gives neither modes, models nor configOptions
``config_model``       true: no session/set_model (-32601); the model is a configOption only
``ignore_sigterm``     true
``ignore_eof``         true: stdin's end is not the end of the process
``exit_delay_ms``      pause between stdin's end or SIGTERM and the exit
``uuids``              true: session ids are UUIDs, as most agents make them (default: ``s-PID-N``)
``pidfile``            path: the agent appends its pid, and each ``spawn`` that of the grandchild, one a line
``log``                path: every message received is appended there, one JSON line each
=====================  =================================================================================================

What a turn does
================
1. ``turns``, when given.
2. A prompt whose text is a JSON list: the steps themselves (`steps(...)` encodes them).
3. Words in the prompt, the ones the demo agent knows and more: ``slow`` / ``slow=MS`` (pause per chunk, 200), ``long=N``,
   ``permission``, ``tool``, ``fail``, ``hold`` (after the greeting), ``deaf`` (ignores cancel), ``crash``, ``exit=CODE``, ``big=BYTES``,
   ``flood=NxBYTES``, ``spawn``, ``deaf-hold``, ``echo TEXT``, ``after=N`` (N updates after a cancel, then the answer),
   ``stderr=BYTES``, ``emoji``, ``noise``. Anything else is answered ``Hello from the scripted agent.`` in four chunks.

A turn ends with ``{"stopReason": "end_turn"}`` unless a step says otherwise; a cancelled one with ``cancelled``.

Steps
=====
==================================  ======================================================================================
``["say", TEXT, N?, MS?]``          agent_message_chunk, N times, MS between (``{n}`` in TEXT is the number)
``["think", TEXT]``                 agent_thought_chunk
``["update", OBJECT]``              any session update
``["flood", N, BYTES]``             N message chunks of about BYTES bytes a line, as fast as the pipe takes them
``["growing", N, BYTES]``           N tool_call_updates, the n-th carrying n × BYTES
``["big", BYTES]``                  one chunk whose whole line has exactly BYTES bytes, newline excluded
``["pause", MS]``                   wait; a cancel ends it (unless deaf)
``["hold"]``                        wait until cancelled
``["deaf"]``                        from here on this turn ignores session/cancel
``["permission", OPTIONS?]``        session/request_permission, then ``say``s ``answer: OPTION`` or ``answer: cancelled``
``["permission_nowait"]``           the same without waiting for the answer
``["request", METHOD, PARAMS]``     ask the client anything (``sessionId`` is added), then ``say``s the result as JSON
``["notify", METHOD, PARAMS]``      notification (``sessionId`` is added)
``["raw", TEXT]``                   TEXT to stdout as it is, no newline added; ``["rawhex", HEX]`` the same for bytes
``["drip", TEXT, MS]``              TEXT to stdout byte by byte, MS between
``["line", OBJECT]``                OBJECT as JSON and a newline
``["stderr", TEXT]``                text to stderr; a number writes that many bytes
``["spawn"]``                       start ``sleep 1000`` and ``say`` its pid: ``pid N``
``["after_cancel", STEPS]``         played when the turn is cancelled, before the answer
``["error", CODE, MESSAGE, DATA?]`` the turn ends with this error
``["stop", REASON]``                the turn ends with this stop reason
``["never"]``                       the turn is never answered
``["crash"]``                       SIGKILL to itself; ``["exit", CODE]``: leave at once, stdout flushed
``["close_stdout"]``                close stdout and stay
``["stop_reading"]``                read nothing more from stdin, for ever
==================================  ======================================================================================

Extension requests ``_echo`` answer their params, ``_fail`` an error. set_model and set_mode of an unknown id answer as
qwen does (-32603 ``Internal error`` with ``data.details``, -32602).
"""

from __future__ import annotations

import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import Any, NoReturn

__all__ = ["command", "shell_line", "steps"]

MODES = ("plan", "default", "auto-edit", "auto", "yolo")
MODELS = ("scripted-small", "scripted-large")
GREETING = ("Hello", " from", " the scripted", " agent.")
DEFAULT_OPTIONS = [
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
]
HOLD_SECONDS = 600
INLINE = ("say", "think", "update", "stop", "raw", "line")
WORD = re.compile(
    r"\b(slow|long|permission|tool|fail|hold|deaf-hold|deaf|crash|exit|big|flood|spawn|after|stderr|emoji|noise)\b(?:=(\S+))?"
)


def command(**options: Any) -> list[str]:
    """The argument list that starts the agent with these options."""
    return [sys.executable, "-S", "-E", os.path.abspath(__file__), json.dumps(options)]


def shell_line(**options: Any) -> str:
    return shlex.join(command(**options))


def steps(*listed: list[Any]) -> str:
    """A prompt text that makes a turn of these steps."""
    return json.dumps(listed)


class TurnError(Exception):
    pass


class Cancelled(Exception):
    pass


class Agent:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.out = sys.stdout.buffer
        self.lock = threading.Lock()
        self.sessions: dict[str, Session] = {}
        self.answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.next_id = 0
        self.turns = 0
        self.reading = True

    # output ---------------------------------------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        with self.lock:
            self.out.write(data)
            self.out.flush()

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def ask(self, method: str, params: dict[str, Any]) -> queue.SimpleQueue[dict[str, Any]]:
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self.lock:
            number, self.next_id = self.next_id, self.next_id + 1
        self.answers[number] = answer
        self.send({"id": number, "method": method, "params": params})
        return answer

    def note_pid(self, pid: int) -> None:
        if path := self.options.get("pidfile"):
            with open(path, "a", encoding="ascii") as file:
                file.write(f"{pid}\n")

    def leave(self, code: int) -> NoReturn:
        with self.lock:
            self.out.flush()
            os._exit(code)

    # input ----------------------------------------------------------------------------------------------------------
    def run(self) -> None:
        self.note_pid(os.getpid())
        nobody = Turn(self, Session("", {}), None)
        for step in self.options.get("start", ()):
            nobody.play(step)
        if self.options.get("initialize") == "exit":
            self.leave(1)
        while self.options.get("initialize") == "garbage":
            self.write(b"this is no protocol at all \x1b[2J\n" * 200)
        for line in sys.stdin.buffer:
            if log := self.options.get("log"):
                with open(log, "ab") as file:
                    file.write(line)
            self.receive(json.loads(line))
            while not self.reading:
                time.sleep(1)
        if self.options.get("ignore_eof"):
            while True:
                time.sleep(1)
        time.sleep(self.options.get("exit_delay_ms", 0) / 1000)
        self.leave(0)

    def receive(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            waiting = self.answers.pop(message["id"], None)
            if waiting is not None:
                waiting.put(message)
            return
        method, params = message["method"], message.get("params") or {}
        if method == "session/cancel":
            self.cancel(params["sessionId"])
        elif method == "session/prompt":
            self.prompt(message["id"], params)
        elif "id" in message:
            try:
                result = self.serve(method, params)
            except TurnError as error:
                self.send({"id": message["id"], "error": error.args[0]})
            else:
                if result is not None:
                    self.send({"id": message["id"], "result": result})

    def cancel(self, session_id: str) -> None:
        session = self.sessions.get(session_id)
        if session is not None and session.turn is not None:
            session.turn.cancelled.set()
            for answer in list(session.turn.waiting):
                answer.put({"cancelled": True})

    def prompt(self, number: Any, params: dict[str, Any]) -> None:
        session = self.sessions.get(params["sessionId"])
        if session is None:
            self.send({"id": number, "error": {"code": -32602, "message": f"Session not found: {params['sessionId']}"}})
            return
        turn = session.turn = Turn(self, session, number)
        listed = self.listed(params)
        self.turns += 1
        # Short turns that wait for nothing run right here: a thread costs more than they do.
        if len(listed) > 64 or any(step[0] not in INLINE or len(step) > 2 for step in listed):
            threading.Thread(target=turn.run, args=(listed,), daemon=True).start()
        else:
            turn.run(listed)

    def listed(self, params: dict[str, Any]) -> list[Any]:
        if turns := self.options.get("turns"):
            return list(turns[min(self.turns, len(turns) - 1)])
        text = "".join(block.get("text", "") for block in params["prompt"])
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return worded(text)

    def serve(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        handler = HANDLERS.get(method)
        if method in self.options.get("unanswered", ()):
            return None
        if handler is None or (method == "session/set_model" and self.options.get("config_model")):
            raise TurnError({"code": -32601, "message": f"Method not found: {method}", "data": {"method": method}})
        result: dict[str, Any] | None = handler(self, params)
        return result

    # sessions -------------------------------------------------------------------------------------------------------
    def initialize(self, params: dict[str, Any]) -> dict[str, Any] | None:
        del params
        time.sleep(self.options.get("start_delay_ms", 0) / 1000)
        if self.options.get("initialize") == "never":
            return None
        if self.options.get("initialize") == "error":
            raise TurnError({"code": -32603, "message": "scripted initialize error", "data": {"why": "asked for"}})
        stored = "state" in self.options
        listing: dict[str, Any] = {"list": {}, "resume": {}} if stored else {}
        listing |= {name: {} for name in ("fork", "close") if self.options.get(name)}
        return {
            "protocolVersion": 1,
            "agentInfo": {"name": "scripted-agent", "version": "1"},
            "agentCapabilities": {
                "loadSession": stored,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "sessionCapabilities": listing,
                "_meta": {"scripted": True},
            },
            "authMethods": [],
        }

    def new(self, params: dict[str, Any]) -> dict[str, Any]:
        if error := self.options.get("new_error"):
            raise TurnError(dict(zip(("code", "message", "data"), error, strict=False)))
        wanted = (params.get("_meta") or {}).get("qwen-code/sessionId")
        made = str(uuid.uuid4()) if self.options.get("uuids") else f"s-{os.getpid()}-{len(self.sessions) + 1}"
        session_id = wanted or self.options.get("session_id") or made
        state = self.open(session_id, params).state(self.options)
        return {"sessionId": session_id, **state, **self.options.get("new_result", {})}

    def open(self, session_id: str, params: dict[str, Any]) -> Session:
        session = self.sessions[session_id] = Session(session_id, params)
        for number in range(self.options.get("early", 0)):
            session.say(self, f"early {number}")
        self.store(session)
        return session

    def stored(self) -> dict[str, Any]:
        path = self.options.get("state")
        if path is None or not os.path.exists(path):
            return {}
        with open(path, encoding="utf-8") as file:
            return dict(json.load(file))

    def store(self, session: Session) -> None:
        if path := self.options.get("state"):
            stored = self.stored()
            stored[session.id] = {"cwd": session.cwd, "history": session.history}
            with open(path + ".new", "w", encoding="utf-8") as file:
                json.dump(stored, file)
            os.replace(path + ".new", path)

    def restore(self, params: dict[str, Any]) -> Session:
        stored = self.stored().get(params["sessionId"])
        if stored is None:
            message = f"Resource not found: {params['sessionId']}"
            raise TurnError({"code": -32002, "message": message, "data": {"sessionId": params["sessionId"]}})
        session = self.sessions[params["sessionId"]] = Session(params["sessionId"], params)
        session.history = stored["history"]
        return session

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.restore(params)
        replay = session.history or [f"replayed {n}" for n in range(self.options.get("load_replay", 0))]
        for text in replay:
            session.say(self, text, remember=False)
        return session.state(self.options)

    def resume(self, params: dict[str, Any]) -> dict[str, Any]:
        return self.restore(params).state(self.options)

    def fork(self, params: dict[str, Any]) -> dict[str, Any]:
        if not self.options.get("fork"):
            raise TurnError({"code": -32601, "message": "Method not found: session/fork"})
        session_id = f"{params['sessionId']}-fork-{len(self.sessions) + 1}"
        return {"sessionId": session_id, **self.open(session_id, params).state(self.options)}

    def close(self, params: dict[str, Any]) -> dict[str, Any]:
        if not self.options.get("close"):
            raise TurnError({"code": -32601, "message": "Method not found: session/close"})
        self.sessions.pop(params["sessionId"], None)
        return {}

    def list_stored(self, params: dict[str, Any]) -> dict[str, Any]:
        del params
        if "list_result" in self.options:
            return self.options["list_result"]  # type: ignore[no-any-return]  # whatever the test asks for
        return {
            "sessions": [
                {"sessionId": key, "cwd": value["cwd"], "title": f"title of {key}", "updatedAt": "2026-01-01T00:00:00Z"}
                for key, value in self.stored().items()
            ]
        }

    def set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["modeId"] not in MODES:
            raise TurnError({"code": -32602, "message": f"Invalid mode: {params['modeId']}"})
        self.sessions[params["sessionId"]].mode = params["modeId"]
        return {}

    def set_model(self, params: dict[str, Any]) -> dict[str, Any]:
        if params["modelId"] not in MODELS:
            details = {"details": f"Model '{params['modelId']}' not found"}
            raise TurnError({"code": -32603, "message": "Internal error", "data": details})
        self.sessions[params["sessionId"]].model = params["modelId"]
        return {}

    def set_config_option(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self.sessions[params["sessionId"]]
        if params["configId"] == "mode":
            self.set_mode({**params, "modeId": params["value"]})
        elif params["configId"] == "model":
            self.set_model({**params, "modelId": params["value"]})
        else:
            raise TurnError({"code": -32602, "message": f"Unknown config option: {params['configId']}"})
        return {"configOptions": session.state(self.options)["configOptions"]}

    def fail(self, params: dict[str, Any]) -> dict[str, Any]:
        raise TurnError({"code": -32050, "message": "scripted extension error", "data": params})


class Session:
    def __init__(self, session_id: str, params: dict[str, Any]) -> None:
        self.id = session_id
        self.cwd = params.get("cwd", "")
        self.mode = "default"
        self.model = MODELS[0]
        self.turn: Turn | None = None
        self.history: list[str] = []

    def state(self, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("no_modes"):
            return {}
        modes = [{"id": mode, "name": mode.title()} for mode in MODES]
        models = [{"modelId": model, "name": model.title()} for model in MODELS]
        choices = [
            {
                "id": "mode",
                "name": "Mode",
                "category": "mode",
                "type": "select",
                "currentValue": self.mode,
                "options": [{"value": mode["id"], "name": mode["name"]} for mode in modes],
            },
            {
                "id": "model",
                "name": "Model",
                "category": "model",
                "type": "select",
                "currentValue": self.model,
                "options": [{"value": model["modelId"], "name": model["name"]} for model in models],
            },
        ]
        state = {
            "modes": {"currentModeId": self.mode, "availableModes": modes},
            "models": {"currentModelId": self.model, "availableModels": models},
            "configOptions": choices,
        }
        if options.get("config_model"):
            del state["models"]
        return state

    def update(self, agent: Agent, update: dict[str, Any]) -> None:
        agent.send({"method": "session/update", "params": {"sessionId": self.id, "update": update}})

    def say(self, agent: Agent, text: str, kind: str = "agent_message_chunk", *, remember: bool = True) -> None:
        if remember:
            self.history.append(text)
        self.update(agent, {"sessionUpdate": kind, "content": {"type": "text", "text": text}})


class Turn:
    def __init__(self, agent: Agent, session: Session, number: Any) -> None:
        self.agent = agent
        self.session = session
        self.number = number
        self.cancelled = threading.Event()
        self.deaf = False
        self.after_cancel: list[Any] = []
        self.waiting: list[queue.SimpleQueue[dict[str, Any]]] = []

    def run(self, listed: list[Any]) -> None:
        answer: dict[str, Any] | None = {"result": {"stopReason": "end_turn"}}
        try:
            for step in listed:
                if self.cancelled.is_set() and not self.deaf and step[0] != "after_cancel":
                    raise Cancelled
                outcome = self.play(step)
                if outcome is not None:
                    answer = outcome or None
                    break
        except Cancelled:
            self.deaf = True
            for step in self.after_cancel:
                self.play(step)
            answer = {"result": {"stopReason": "cancelled"}}
        self.session.turn = None
        self.agent.store(self.session)
        if answer is not None and self.number is not None:
            self.agent.send({"id": self.number, **answer})

    def play(self, step: list[Any]) -> dict[str, Any] | None:
        """Carry out one step; a result ends the turn with it, an empty one ends it without an answer."""
        result: dict[str, Any] | None = STEPS[step[0]](self, *step[1:])
        return result

    def pause(self, seconds: float) -> None:
        if self.deaf:
            time.sleep(seconds)
        elif self.cancelled.wait(seconds):
            raise Cancelled

    def wait(self, answer: queue.SimpleQueue[dict[str, Any]]) -> dict[str, Any]:
        self.waiting.append(answer)
        result = answer.get(timeout=HOLD_SECONDS)
        self.waiting.remove(answer)
        if "cancelled" in result:
            # The client must still answer the request itself; what it says no longer matters.
            if self.deaf:
                return self.wait(answer)
            raise Cancelled
        return result

    # steps ----------------------------------------------------------------------------------------------------------
    def say(self, text: str, times: int = 1, pause_ms: float = 0) -> None:
        for n in range(times):
            if pause_ms and n:
                self.pause(pause_ms / 1000)
            self.session.say(self.agent, text.replace("{n}", str(n)))

    def think(self, text: str) -> None:
        self.session.say(self.agent, text, "agent_thought_chunk")

    def update(self, update: dict[str, Any]) -> None:
        self.session.update(self.agent, update)

    def chunk_line(self, text: str) -> bytes:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        params = {"sessionId": self.session.id, "update": update}
        return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()

    def flood(self, times: int, size: int) -> None:
        line = self.chunk_line("x" * max(0, size - len(self.chunk_line("")))) + b"\n"
        batch = max(1, 65536 // len(line))
        for start in range(0, times, batch):
            self.agent.write(line * min(batch, times - start))

    def growing(self, times: int, size: int) -> None:
        for n in range(1, times + 1):
            content = [{"type": "content", "content": {"type": "text", "text": "g" * (n * size)}}]
            self.update({"sessionUpdate": "tool_call_update", "toolCallId": "growing", "content": content})

    def big(self, size: int) -> None:
        self.agent.write(self.chunk_line("b" * (size - len(self.chunk_line("")))) + b"\n")

    def hold(self) -> None:
        self.pause(HOLD_SECONDS)

    def go_deaf(self) -> None:
        self.deaf = True

    def permission(self, options: list[dict[str, Any]] | None = None, *, wait: bool = True) -> None:
        tool_call = {"toolCallId": "call-1", "title": "touch a file", "kind": "execute", "status": "pending"}
        self.update({"sessionUpdate": "tool_call", **tool_call})
        params = {"sessionId": self.session.id, "toolCall": tool_call, "options": options or DEFAULT_OPTIONS}
        answer = self.agent.ask("session/request_permission", params)
        if not wait:
            return
        outcome = self.wait(answer).get("result", {}).get("outcome", {})
        chosen = outcome.get("optionId") or outcome.get("outcome")
        status = "completed" if outcome.get("optionId") == "allow" else "failed"
        self.update({"sessionUpdate": "tool_call_update", "toolCallId": "call-1", "status": status})
        self.say(f"answer: {chosen}")

    def permission_nowait(self) -> None:
        self.permission(wait=False)

    def tool(self) -> None:
        call = {
            "sessionUpdate": "tool_call",
            "toolCallId": "call-2",
            "title": "look",
            "kind": "read",
            "status": "in_progress",
        }
        self.update(call)
        self.update({"sessionUpdate": "tool_call_update", "toolCallId": "call-2", "status": "completed"})

    def request(self, method: str, params: dict[str, Any]) -> None:
        answer = self.wait(self.agent.ask(method, {"sessionId": self.session.id, **params}))
        shown = answer["result"] if "result" in answer else {"error": answer.get("error")}
        self.say(json.dumps(shown))

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.agent.send({"method": method, "params": {"sessionId": self.session.id, **params}})

    def raw(self, text: str) -> None:
        self.agent.write(text.replace("{session}", self.session.id).encode("utf-8", "surrogatepass"))

    def rawhex(self, text: str) -> None:
        self.agent.write(bytes.fromhex(text))

    def drip(self, text: str, pause_ms: float = 0) -> None:
        for byte in text.replace("{session}", self.session.id).encode():
            self.agent.write(bytes([byte]))
            if pause_ms:
                time.sleep(pause_ms / 1000)

    def line(self, message: dict[str, Any]) -> None:
        self.agent.write(json.dumps(message).encode() + b"\n")

    def stderr(self, text: str | int) -> None:
        if isinstance(text, str):
            os.write(2, text.encode() + b"\n")
            return
        block = (b"e" * 99 + b"\n") * 640
        for start in range(0, text, len(block)):
            rest = memoryview(block)[: min(len(block), text - start)]
            while rest:
                rest = rest[os.write(2, rest) :]

    def spawn(self) -> None:
        child = subprocess.Popen(["sleep", "1000"])
        self.agent.note_pid(child.pid)
        self.say(f"pid {child.pid}")

    def set_after_cancel(self, listed: list[Any]) -> None:
        self.after_cancel = listed

    def error(self, code: int, message: str, data: Any = None) -> dict[str, Any]:
        return {"error": {"code": code, "message": message, **({} if data is None else {"data": data})}}

    def stop(self, reason: str) -> dict[str, Any]:
        return {"result": {"stopReason": reason}}

    def never(self) -> dict[str, Any]:
        return {}

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(HOLD_SECONDS)

    def leave(self, code: int = 0) -> None:
        self.agent.leave(code)

    def close_stdout(self) -> None:
        with self.agent.lock:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)

    def stop_reading(self) -> None:
        self.agent.reading = False


STEPS: dict[str, Any] = {
    name: getattr(Turn, name)
    for name in (
        *(
            "say",
            "think",
            "update",
            "flood",
            "growing",
            "big",
            "hold",
            "permission",
            "permission_nowait",
            "tool",
            "request",
        ),
        *(
            "notify",
            "raw",
            "rawhex",
            "drip",
            "line",
            "stderr",
            "spawn",
            "error",
            "stop",
            "never",
            "crash",
            "close_stdout",
        ),
        "stop_reading",
    )
} | {
    "pause": lambda turn, ms: turn.pause(ms / 1000),
    "deaf": Turn.go_deaf,
    "after_cancel": Turn.set_after_cancel,
    "exit": Turn.leave,
}
HANDLERS: dict[str, Any] = {
    "initialize": Agent.initialize,
    "session/new": Agent.new,
    "session/load": Agent.load,
    "session/resume": Agent.resume,
    "session/fork": Agent.fork,
    "session/close": Agent.close,
    "session/list": Agent.list_stored,
    "session/set_mode": Agent.set_mode,
    "session/set_model": Agent.set_model,
    "session/set_config_option": Agent.set_config_option,
    "_echo": lambda agent, params: params,
    "_fail": Agent.fail,
}


def worded(text: str) -> list[Any]:
    """The steps that words in a prompt ask for."""
    if text.startswith("echo "):
        return [["say", text.removeprefix("echo ")]]
    listed: list[Any] = []
    pause, count = 0.0, 0
    for word, value in WORD.findall(text):
        match word:
            case "slow":
                pause = float(value or 200)
            case "long":
                count = int(value or 10)
            case "fail":
                return [*listed, ["error", -32603, "Internal error", {"details": "scripted failure"}]]
            case "deaf-hold":
                listed += [["deaf"], ["hold"]]
            case "exit" | "big":
                listed.append([word, int(value or 0)])
            case "flood":
                listed.append(["flood", *map(int, value.split("x"))])
            case "after":
                listed.append(["after_cancel", [["say", "after {n}", int(value or 1)]]])
            case "stderr":
                listed.append(["stderr", int(value)])
            case "emoji":
                listed.append(["say", "é漢🙂"])
            case "noise":
                listed.append(["raw", 'starting up…\n\x1b[2J\n42\n"text"\n[]\nnull\n\n{"jsonrpc":"2.0"}\n{not json\n'])
            case _:
                listed.append([word])
    modifiers = [step for step in listed if step[0] in ("deaf", "after_cancel")]
    ends = [step for step in listed if step[0] in ("hold", "crash", "exit")]
    body = [step for step in listed if step not in modifiers and step not in ends]
    if count or pause or not body:
        body += [["say", "w{n} ", count, pause]] if count else paused([["say", text] for text in GREETING], pause)
    return modifiers + body + ends


def paused(listed: list[Any], pause: float) -> list[Any]:
    return [step for each in listed for step in (each, ["pause", pause])] if pause else listed


def on_sigterm(agent: Agent) -> None:
    if agent.options.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif delay := agent.options.get("exit_delay_ms"):

        def leave_late(*_: object) -> None:
            time.sleep(delay / 1000)
            os._exit(0)

        signal.signal(signal.SIGTERM, leave_late)


def main() -> None:
    text = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SCRIPTED_AGENT", "{}")
    agent = Agent(json.loads(text))
    on_sigterm(agent)
    try:
        agent.run()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
