"""NNRP/1 preview3, the binary wire, without I/O or clock."""
