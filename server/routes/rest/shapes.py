"""The ``data`` of every event type on the stream (rest.md 6.1): what is always there, and what may be.

The page of event types is made of this, and the tests hold every event they see against it. Further fields are allowed:
what an agent adds passes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from sessions import EventType, NoticeType

__all__ = ["SHAPES", "Shape"]


@attrs.frozen(slots=True)
class Shape:
    doc: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


SHAPES: Final[Mapping[str, Shape]] = {
    EventType.SESSION_UPDATE: Shape(
        "An ACP update of the agent, or the echo of a prompt (`_meta.source` = `bridge-echo`)", ("sessionId", "update")
    ),
    EventType.PERMISSION_REQUEST: Shape(
        "The agent asks; answered by a vote", ("requestId", "sessionId", "toolCall", "options"), ("_meta",)
    ),
    EventType.PERMISSION_RESOLVED: Shape(
        "The request is decided", ("requestId", "sessionId", "outcome"), ("voterClientId",)
    ),
    EventType.PERMISSION_ALREADY_RESOLVED: Shape("Somebody voted too late", ("requestId", "sessionId", "outcome")),
    EventType.PERMISSION_PARTIAL_VOTE: Shape(
        "A vote was counted, the quorum is not reached",
        ("requestId", "sessionId", "votesReceived", "votesNeeded", "quorum", "optionTallies"),
    ),
    EventType.PERMISSION_FORBIDDEN: Shape(
        "The policy refused a voter", ("requestId", "sessionId", "reason"), ("clientId",)
    ),
    EventType.TURN_COMPLETE: Shape(
        "A prompt ended, cancelled ones included: the one terminal event of its `promptId`",
        ("sessionId", "stopReason", "promptId"),
        ("promptCancelled",),
    ),
    EventType.TURN_ERROR: Shape(
        "A prompt failed: the one terminal event of its `promptId`",
        ("sessionId", "message", "promptId"),
        ("code", "errorKind"),
    ),
    EventType.PROMPT_CANCELLED: Shape(
        "A running prompt is being cancelled, or failed (`forward_failed`)", ("sessionId",), ("reason",)
    ),
    EventType.PENDING_PROMPT_ADDED: Shape(
        "A prompt was accepted behind others", ("sessionId", "promptId", "text", "queuedAt")
    ),
    EventType.PENDING_PROMPT_STARTED: Shape("Its turn has come", ("sessionId", "promptId", "text")),
    EventType.PENDING_PROMPT_COMPLETED: Shape(
        "It is over (`completed`) or was taken out (`removed`)", ("sessionId", "promptId", "state")
    ),
    EventType.SESSION_CLOSED: Shape(
        "The session was closed; the stream ends", ("sessionId", "reason"), ("closedBy", "cause")
    ),
    EventType.SESSION_DIED: Shape(
        "The agent is gone; the stream ends", ("sessionId", "reason"), ("exitCode", "signalCode")
    ),
    EventType.MODEL_SWITCHED: Shape("The model was switched", ("sessionId", "modelId")),
    EventType.MODEL_SWITCH_FAILED: Shape("The agent refused a model", ("sessionId", "requestedModelId", "error")),
    EventType.APPROVAL_MODE_CHANGED: Shape(
        "The approval mode was switched", ("sessionId", "previous", "next", "persisted")
    ),
    EventType.SESSION_METADATA_UPDATED: Shape("The session was named", ("sessionId", "displayName", "titleSource")),
    EventType.SESSION_BRANCHED: Shape(
        "A new session goes on from here", ("sourceSessionId", "newSessionId", "displayName")
    ),
    EventType.SESSION_RECORDING_DEGRADED: Shape("Durable recording of this session has ended", ("sessionId", "reason")),
    NoticeType.REPLAY_COMPLETE: Shape(
        "What follows is live", ("replayedCount",), ("lastReplayedEventId", "lastEventId")
    ),
    NoticeType.STATE_RESYNC_REQUIRED: Shape(
        "Events are missing, or the cursor counts something else: load the session again",
        ("reason", "lastDeliveredId", "earliestAvailableId"),
        ("detail",),
    ),
    NoticeType.CLIENT_EVICTED: Shape(
        "The reader fell too far behind; the stream ends, the cursor stays good",
        ("reason",),
        (
            "droppedAfter",
            "queueSize",
            "maxQueued",
            "queuedBytes",
            "maxQueuedBytes",
            "eventBytes",
            "errorKind",
            "idleForMs",
            "timeoutMs",
        ),
    ),
    NoticeType.SLOW_CLIENT_WARNING: Shape(
        "The reader is about to be evicted",
        ("queueSize", "maxQueued", "lastEventId", "queuedBytes", "maxQueuedBytes", "threshold"),
    ),
    NoticeType.STREAM_ERROR: Shape(
        "The stream ends for a reason of the server's (`daemon_draining`: it shuts down)", ("error",), ("errorKind",)
    ),
    NoticeType.SESSION_SNAPSHOT: Shape(
        "With `snapshot=1`: where the session stands",
        ("sessionId", "currentModelId", "currentApprovalMode", "recordingDegraded"),
    ),
    NoticeType.HISTORY_TRUNCATED: Shape(
        "In the answer to a load: the beginning is not there",
        ("reason", "truncatedEvents", "retainedEvents", "maxBytes", "fullTranscriptAvailable"),
        ("sessionId",),
    ),
}
