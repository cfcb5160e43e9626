"""``moorline serve``: every flag comes from the table of settings."""

from __future__ import annotations

from typing import Any

import click

from server.config import SETTINGS, Config, ConfigError, load
from server.limits import Kind, Section, Setting

__all__ = ["serve"]


class _Sectioned(click.Command):
    """Help with the settings under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for section in Section:
            rows = [records.pop(each.name, None) for each in SETTINGS if each.served and each.section is section]
            shown = [row for row in rows if row is not None]
            if shown:
                with formatter.section(section.value):
                    formatter.write_dl(shown)
        with formatter.section("Other"):
            formatter.write_dl([row for row in records.values() if row is not None])


def _option(declared: Setting) -> click.Option:
    """Flags take text: one parser checks flags, variables and files alike."""
    more: dict[str, Any] = {"help": _help(declared), "default": None}
    if declared.kind is Kind.SWITCH:
        more["is_flag"] = True
    elif declared.kind is Kind.LIST:
        more["multiple"] = True
    if declared.kind is not Kind.SWITCH:
        more["metavar"] = "|".join(declared.choices) or (
            declared.unit or "N" if declared.kind is Kind.WHOLE else "TEXT"
        )
    return click.Option([declared.flag], **more)


def _help(declared: Setting) -> str:
    facts = []
    if declared.zero:
        facts.append(f"0: {declared.zero}")
    if declared.default is not None and declared.default != () and not isinstance(declared.default, bool):
        shown = ", ".join(declared.default) if isinstance(declared.default, tuple) else declared.default
        facts.append(f"default: {shown}")
    return declared.doc + (f"  [{'; '.join(facts)}]" if facts else "")


def _serve(config: str | None, **flags: Any) -> None:
    """Serve agent sessions over HTTP, event streams and WebSocket.

    Every setting is also an environment variable (--event-ring-size: MOORLINE_EVENT_RING_SIZE) and a key of a TOML file
    (event-ring-size). Flags come before variables, variables before the file.
    """
    try:
        settled = load(flags, file=config)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    raise SystemExit(_run(settled))


def _run(config: Config) -> int:
    from server.process import run

    return run(config)


serve = _Sectioned(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    short_help="Serve agent sessions over HTTP.",
    params=[
        *(_option(each) for each in SETTINGS if each.served),
        click.Option(["--config"], metavar="FILE", help="TOML file with settings (also MOORLINE_CONFIG)."),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
