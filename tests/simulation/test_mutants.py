"""The simulation finds planted faults: eleven mutants of our own code, each a mistake somebody could make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

import sessions.ring
from scripts.simulate import quiet
from server.routes.acp.deferred import Replies, Reply
from server.testing.storm import run_storm
from sessions import Event, Session
from sessions.idempotency import IdempotencyKeys
from sessions.operation import Operation, Outcome
from sessions.permissions import PermissionMediator
from sessions.prompts import PromptQueue
from sessions.recovery import Resume
from sessions.ring import Ring
from sessions.subscription import Subscription
from sessions.turn import TurnReport

SEEDS = range(12)
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet()


def cursor_off_by(step: int) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        real = sessions.ring.plan_resume

        def wrong(*args: Any) -> Resume:
            plan = real(*args)
            return attrs.evolve(plan, after=max(0, plan.after + step)) if plan.after else plan

        patch.setattr(sessions.ring, "plan_resume", wrong)

    return plant


def replay_forgets_its_last_event(patch: pytest.MonkeyPatch) -> None:
    """An exclusive bound where an inclusive one belongs."""
    real = Subscription._take_replay

    def wrong(self: Subscription, items: list[Any]) -> None:
        real(self, items)
        if self._replay_end is None and len(items) > 1 and isinstance(items[-2], Event):
            del items[-2]

    patch.setattr(Subscription, "_take_replay", wrong)


def encoded_form_of_another_event(patch: pytest.MonkeyPatch) -> None:
    """The cache of wire forms is keyed wrongly."""
    cache: dict[Any, bytes] = {}

    def wrong(self: Ring, event: Event, key: object, make: Callable[[Event], bytes]) -> bytes:
        return cache.setdefault((id(self), key, event.id // 2), make(event))

    patch.setattr(Ring, "form", wrong)


def slot_not_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PromptQueue, "_release", lambda self, operation: None)


def prompt_runs_twice(patch: pytest.MonkeyPatch) -> None:
    """The idempotency key is forgotten: a repeated POST is a new prompt."""
    patch.setattr(IdempotencyKeys, "store", lambda self, *args: None)


def reply_before_its_content(patch: pytest.MonkeyPatch) -> None:
    """Deferred replies ignore their watermark."""

    def wrong(self: Replies, delivered: int) -> list[Reply]:
        ready, self._waiting = list(self._waiting), type(self._waiting)()
        return ready

    real_push = Replies.push

    def push(self: Replies, reply: Reply) -> None:
        reply.watermark = 0
        real_push(self, reply)

    patch.setattr(Replies, "release", wrong)
    patch.setattr(Replies, "push", push)


def terminal_event_twice(patch: pytest.MonkeyPatch) -> None:
    real = TurnReport.ended

    def wrong(self: TurnReport, outcome: Outcome) -> None:
        real(self, outcome)
        real(self, outcome)

    patch.setattr(TurnReport, "ended", wrong)


def subscriber_leaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ring, "unsubscribe", lambda self, subscription: None)


def vote_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A resolved request still stands as pending."""
    real = PermissionMediator._resolve

    def wrong(self: PermissionMediator, pending: Any, *args: Any) -> None:
        real(self, pending, *args)
        self._pending[pending.request_id] = pending

    patch.setattr(PermissionMediator, "_resolve", wrong)


def operation_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The settled operation stays among the live ones."""
    real = Session._settle

    def wrong(self: Session, operation: Operation, outcome: Outcome) -> None:
        live = dict(self.operations._live)
        real(self, operation, outcome)
        self.operations._live.update(live)

    patch.setattr(Session, "_settle", wrong)


MUTANTS = [
    ("cursor one too far", cursor_off_by(1), "rest"),
    ("cursor one too near", cursor_off_by(-1), "acp-http"),
    ("replay forgets its last event", replay_forgets_its_last_event, "rest"),
    ("form of another event", encoded_form_of_another_event, "rest"),
    ("slot not released", slot_not_released, "rest"),
    ("prompt runs twice", prompt_runs_twice, "rest"),
    ("reply before its content", reply_before_its_content, "acp-http"),
    ("terminal event twice", terminal_event_twice, "rest"),
    ("subscriber leaks", subscriber_leaks, "acp-ws"),
    ("vote forgotten", vote_forgotten, "rest"),
    ("operation never forgotten", operation_never_forgotten, "acp-ws"),
]


@pytest.mark.parametrize(("plant", "transport"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_the_simulation_finds_it(plant: Plant, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS:
        if run_storm(seed, transport, cuts=15).findings:
            return
    pytest.fail(f"not found in {len(SEEDS)} storms")
