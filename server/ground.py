"""What the routes stand on: one object, made when the application starts and handed to every blueprint."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from server.config import Config
from server.guard_policy import GuardPolicy
from server.metrics import Metrics
from server.nnrp.serving import NnrpServing
from server.shutdown import Drain

__all__ = ["Ground"]


@attrs.frozen(slots=True, eq=False, kw_only=True)
class Ground:
    """Handed to ``blueprint(ground)`` of every route package. One per running application; nothing is global."""

    config: Config
    engine: Any
    """The open harbour."""
    drain: Drain
    """How the process comes to its end: streams send their last frame, WebSockets close with 1012."""
    guard: GuardPolicy
    """The sockets behind the requests."""
    metrics: Metrics
    nnrp: NnrpServing | None = None
    """NNRP in the same process; None where it is not served."""
    started: float = attrs.field(factory=trio.current_time)
    """Trio's clock."""
