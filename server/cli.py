"""The command ``moorline``. Commands are imported when they are run or described, libraries when they are needed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import click

__all__ = ["main"]

_COMMANDS: Final[Mapping[str, str]] = {
    "serve": "server.commands.serve:serve",
    "prompt": "server.commands.client_commands:prompt",
    "attach": "server.commands.client_commands:attach",
    "sessions": "server.commands.client_commands:sessions",
    "cancel": "server.commands.client_commands:cancel",
}
_NNRP: Final[Mapping[str, str]] = {
    "decode": "server.commands.nnrp_decode:decode",
    "conformance": "server.commands.nnrp_conformance:conformance",
    "ping": "server.commands.nnrp_client:ping",
    "submit": "server.commands.nnrp_client:submit",
    "watch": "server.commands.nnrp_client:watch",
    "bench": "server.commands.nnrp_client:bench",
}
"""Commands whose module is not part of an installation do not appear."""
_CLIENT_LIBRARIES: Final = frozenset({"httpx2", "httpcore2"})


class LazyGroup(click.Group):
    """A group whose commands are ``name -> "module:attribute"``."""

    def __init__(self, *args: Any, places: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._places = {name: place for name, place in places.items() if _exists(place)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._places, *(name for name in self.commands if name not in self._places)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            if missing.name not in _CLIENT_LIBRARIES:
                raise
            raise click.ClickException(f"this command needs {missing.name}: install moorline[client]") from None


def _exists(place: str) -> bool:
    return importlib.util.find_spec(place.partition(":")[0]) is not None


@click.group(cls=LazyGroup, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="moorline", message="moorline %(version)s")
def main() -> None:
    """Keeps AI agent and inference sessions moored while connections come and go."""


if any(_exists(place) for place in _NNRP.values()):
    main.add_command(LazyGroup("nnrp", places=_NNRP, help="Look at and try NNRP.", short_help="Look at and try NNRP."))


if __name__ == "__main__":
    main()
