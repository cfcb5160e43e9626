"""The cases of the public NNRP/1 preview3 conformance suite, carried out on moorline's codec and machines."""

from server.conformance import l0, l1_control, l1_data, l1_objects, l2
from server.conformance.case import CASES, SKIPS, Evidence, run_case

__all__ = ["CASES", "SKIPS", "Evidence", "run_case"]

_MODULES = (l0, l1_control, l1_data, l1_objects, l2)
"""Importing them registers their cases."""
