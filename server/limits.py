"""How a setting is declared: one line in `server.config.Config` gives flag, variable, TOML key, check and documentation."""

from __future__ import annotations

import enum
import ipaddress
import math
import re
from collections.abc import Callable
from typing import Any, Final

import attrs

__all__ = ["ConfigError", "Kind", "Section", "Setting", "parse", "setting", "settings_of"]

_METADATA: Final = "moorline.setting"
_WHOLE = re.compile(r"[+-]?[0-9]+\Z")
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


class ConfigError(Exception):
    """A setting has a value it cannot have. The text starts with the name the user wrote: flag, variable or file key."""

    def __init__(self, origin: str, problem: str) -> None:
        super().__init__(f"{origin}: {problem}")
        self.origin = origin
        self.problem = problem


class Kind(enum.Enum):
    """What a setting's value is."""

    WHOLE = "whole number"
    SWITCH = "switch"
    TEXT = "text"
    LIST = "list"
    CHOICE = "choice"


class Section(enum.StrEnum):
    """Headings of the documentation, in this order."""

    LISTEN = "Listening and access"
    AGENT = "What stands behind a session"
    SESSIONS = "Sessions"
    PROMPTS = "Prompts and permissions"
    STREAMS = "Streams, replay and grace"
    HTTP = "HTTP connections"
    LOGS = "Logs"
    NNRP = "NNRP"


@attrs.frozen(slots=True, kw_only=True)
class Setting:
    """One declared setting. ``name`` is the attribute of `Config` and, with dashes, flag and TOML key."""

    name: str
    kind: Kind
    default: Any
    doc: str
    section: Section
    rule: str = ""
    """Where the default or the meaning comes from."""
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    zero: str = ""
    """What 0 means, where it means something else than a number."""
    choices: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Further environment variables, asked after ``MOORLINE_…``."""
    secret: bool = False
    served: bool = True
    """False: declared here, not offered yet."""
    check: Callable[[Any], Any] | None = None
    """Turns a well-typed value into its final form; raises ``ValueError``."""

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        return "--" + self.key

    @property
    def variable(self) -> str:
        return "MOORLINE_" + self.name.upper()


def setting(
    default: Any,
    doc: str,
    *,
    section: Section,
    kind: Kind | None = None,
    **more: Any,
) -> Any:
    """Declare a field of `Config`. The kind follows from the default unless it is said."""
    if kind is None:
        kind = _kind_of(default, more.get("choices", ()))
    declared = {"kind": kind, "default": default, "doc": doc, "section": section, **more}
    return attrs.field(default=default, metadata={_METADATA: declared})


def settings_of(config: type[Any]) -> tuple[Setting, ...]:
    """Every setting of ``config``, in the order of declaration."""
    return tuple(
        Setting(name=field.name, **field.metadata[_METADATA])
        for field in attrs.fields(config)
        if _METADATA in field.metadata
    )


def parse(declared: Setting, raw: Any, origin: str) -> Any:
    """The value of ``declared`` from what a flag, a variable or a file gave. Raises `ConfigError` naming ``origin``."""
    try:
        value = _READERS[declared.kind](declared, raw)
        return declared.check(value) if declared.check is not None else value
    except ValueError as error:
        raise ConfigError(origin, str(error)) from None


def _kind_of(default: Any, choices: tuple[str, ...]) -> Kind:
    if choices:
        return Kind.CHOICE
    if isinstance(default, bool):
        return Kind.SWITCH
    if isinstance(default, int):
        return Kind.WHOLE
    if isinstance(default, tuple):
        return Kind.LIST
    return Kind.TEXT


_MOST_DIGITS: Final = 20


def _whole(declared: Setting, raw: Any) -> int:
    """Whole numbers only: fractions and 1e3 are refused rather than rounded, and so are NaN and infinity, for which 0 is
    the word where it is one (ACP-211)."""
    value: int
    if isinstance(raw, str) and _WHOLE.match(raw.strip()):
        if len(raw.strip()) > _MOST_DIGITS:
            raise ValueError(f"must be {_range(declared)}, and of at most {_MOST_DIGITS} digits")
        value = int(raw.strip())
    elif isinstance(raw, int) and not isinstance(raw, bool):
        value = raw
    else:
        shown = "NaN" if isinstance(raw, float) and math.isnan(raw) else repr(raw)
        raise ValueError(f"must be a whole number, not {shown}")
    low, high = declared.minimum, declared.maximum
    if declared.zero and value == 0:
        return 0
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"must be {_range(declared)}, not {raw}")
    return value


def _range(declared: Setting) -> str:
    low, high = declared.minimum, declared.maximum
    text = f"at least {low}" if high is None else f"between {low} and {high}"
    return f"0 or {text}" if declared.zero and low else text


def _switch(_: Setting, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"must be true or false, not {raw!r}")


def _text(_: Setting, raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"must be text, not {raw!r}")
    if not raw.strip():
        # Whoever writes --token "$TOKEN" means a token, also where the variable is not set.
        raise ValueError("must not be empty")
    return raw.strip()


def _list(_: Setting, raw: Any) -> tuple[str, ...]:
    """A list in a file, a repeated flag, or one variable with commas between the items."""
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"must be a list of texts, not {raw!r}")
    return tuple(item.strip() for item in items if item.strip())


def _choice(declared: Setting, raw: Any) -> str:
    word = str(raw).strip().lower()
    if word not in declared.choices:
        raise ValueError(f"must be one of {', '.join(declared.choices)}, not {raw!r}")
    return word


_READERS: Final[dict[Kind, Callable[[Setting, Any], Any]]] = {
    Kind.WHOLE: _whole,
    Kind.SWITCH: _switch,
    Kind.TEXT: _text,
    Kind.LIST: _list,
    Kind.CHOICE: _choice,
}


def networks(values: tuple[str, ...]) -> tuple[str, ...]:
    """Check for a list of IP networks; returns them in canonical form."""
    return tuple(str(ipaddress.ip_network(value, strict=False)) for value in values)
