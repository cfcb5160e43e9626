"""NNRP/1 preview3, the binary wire, without I/O or clock. `packet` is where to start; the room's README says how."""
