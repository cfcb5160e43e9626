"""Turns, budgets and backpressure as metrics (nnrp-wire 14)."""

from __future__ import annotations

from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from protocol.nnrp.enums import PriorityClass, ResultBudgetPolicy
from server.metrics import gauge, total
from server.nnrp.turns import Turns

__all__ = ["turn_gauges"]

_ENDINGS: Final = {
    ResultBudgetPolicy.FULL: "degraded",
    ResultBudgetPolicy.PARTIAL: "partial",
    ResultBudgetPolicy.STALE_REUSE: "stale_reuse",
    ResultBudgetPolicy.DROP: "drop",
}


def turn_gauges(turns: Turns, flow_updates: int) -> list[Metric]:
    now = turns.scheduler.statistics()
    waiting = GaugeMetricFamily(
        "moorline_nnrp_operations_waiting", "NNRP operations that wait for their turn", labels=["priority"]
    )
    started = CounterMetricFamily(
        "moorline_nnrp_operations_started", "NNRP operations that had their turn", labels=["priority"]
    )
    for each in PriorityClass:
        waiting.add_metric([each.name.lower()], now.waiting[each])
        started.add_metric([each.name.lower()], now.started[each])
    spent = CounterMetricFamily(
        "moorline_nnrp_budgets_spent", "NNRP operations that ran out of their budget", labels=["ending"]
    )
    for ending, name in _ENDINGS.items():
        spent.add_metric([name], turns.budgets[ending])
    return [
        gauge("nnrp_operations_running", "NNRP operations carried out now", now.running),
        gauge("nnrp_operations_suspended", "NNRP operations that wait for a tool or a reader", now.suspended),
        gauge("nnrp_backpressure_level", "0 none, 1 soft, 2 hard", int(turns.pressure.level)),
        waiting,
        started,
        spent,
        total("nnrp_operations_aged", "NNRP operations started out of order, lest they starve", now.aged),
        total("nnrp_operations_refused", "NNRP operations refused because too many waited", now.refused),
        total("nnrp_operations_shed", "NNRP operations dropped to make room", turns.shed),
        total("nnrp_flow_updates", "FLOW_UPDATEs sent", flow_updates),
    ]
