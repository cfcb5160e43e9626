"""NNRP served, beside nnrp-py and beside a bare echo: ``python -m benchmarks.nnrp``."""
