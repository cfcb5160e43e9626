"""``python -m server`` is ``moorline serve``."""

from __future__ import annotations

from server.commands.serve import serve

if __name__ == "__main__":
    serve(prog_name="python -m server")
