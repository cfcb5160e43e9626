"""The NNRP client: connections, sessions, operations and their results, on Trio. Imports ``protocol`` only.

``open_nnrp`` opens a connection, ``connection.open_session`` a session, ``session.submit`` an operation whose results are
iterated.
"""

from __future__ import annotations

from client.nnrp.attaching import NnrpTicket, attach_session, nnrp_ticket
from client.nnrp.background import Background, BackgroundEvent
from client.nnrp.cache import Lease, NnrpCache, ObjectVersion, object_dependency, schema_dependency
from client.nnrp.connection import NnrpConnection, open_nnrp
from client.nnrp.errors import (
    NnrpCacheRefused,
    NnrpClientError,
    NnrpConnectionLost,
    NnrpOperationEnded,
    NnrpPatchRefused,
    NnrpRefused,
    NnrpResultsLost,
    NnrpSessionOver,
)
from client.nnrp.options import NnrpOptions
from client.nnrp.probing import Candidate, probe_transports
from client.nnrp.results import Result
from client.nnrp.session import NnrpSession, SubmitOptions
from client.nnrp.submission import Submission

__all__ = [
    "Background",
    "BackgroundEvent",
    "Candidate",
    "Lease",
    "NnrpCache",
    "NnrpCacheRefused",
    "NnrpClientError",
    "NnrpConnection",
    "NnrpConnectionLost",
    "NnrpOperationEnded",
    "NnrpOptions",
    "NnrpPatchRefused",
    "NnrpRefused",
    "NnrpResultsLost",
    "NnrpSession",
    "NnrpSessionOver",
    "NnrpTicket",
    "ObjectVersion",
    "Result",
    "Submission",
    "SubmitOptions",
    "attach_session",
    "nnrp_ticket",
    "object_dependency",
    "open_nnrp",
    "probe_transports",
    "schema_dependency",
]
