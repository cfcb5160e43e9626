"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import hypothesis
import pytest
import structlog

# A shared machine may stop for a moment in any example: correctness is judged here, time never.
hypothesis.settings.register_profile("moorline", deadline=None)
hypothesis.settings.load_profile("moorline")


@pytest.fixture(autouse=True)
def _logging_as_imported() -> Iterator[None]:
    """A test that sets logging up (as a start does) must not change what the next one sees."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    logging.disable(logging.NOTSET)
