"""One module per generated page; each has ``documents() -> dict[path, text]``."""
