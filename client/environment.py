"""What the environment says about a daemon."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["default_token"]

TOKEN_VARIABLES = ("MOORLINE_TOKEN", "QWEN_SERVER_TOKEN")


def default_token(environment: Mapping[str, str] | None = None) -> str | None:
    """The bearer token of the environment, ours first, then the reference daemon's; blank counts as none."""
    variables = os.environ if environment is None else environment
    for name in TOKEN_VARIABLES:
        token = variables.get(name, "").strip()
        if token:
            return token
    return None
