"""REST-001: one reading of request bodies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.application import Application
from server.config import Config
from server.routes.body import InvalidJson, parse_json_object
from tests.support.asgi import drive
from tests.support.serving import fake_engine, try_routes


@pytest.mark.parametrize("raw", [b"", b"  \r\n", b"[]", b"[1]", b"null", b"3", b'"text"', b"true", b"\xef\xbb\xbf{}"])
def test_anything_but_an_object_counts_as_empty(raw: bytes) -> None:
    """REST-001."""
    assert parse_json_object(raw) == {}


def test_dangerous_keys_are_ignored() -> None:
    """REST-001."""
    raw = b'{"__proto__":{"a":1},"constructor":2,"prototype":3,"cwd":"/x","\\u005f_proto__":4}'
    assert parse_json_object(raw) == {"cwd": "/x"}


def test_of_equal_keys_the_last_counts() -> None:
    assert parse_json_object(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"cwd":',
        b"{",
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":1,}',
        b'{"a":1} x',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\n"}',
        b"\x00{}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda raw: raw[:12],
)
def test_malformed(raw: bytes) -> None:
    """REST-001: NaN and infinities, bad UTF-8 and endless nesting included."""
    with pytest.raises(InvalidJson):
        parse_json_object(raw)


@pytest.mark.parametrize(("charset", "codec"), [("utf-8", "utf-8"), ("utf-16", "utf-16"), ("iso-8859-1", "latin-1")])
def test_charsets(charset: str, codec: str) -> None:
    assert parse_json_object('{"a":"é"}'.encode(codec), charset) == {"a": "é"}


def test_unknown_charset() -> None:
    with pytest.raises(InvalidJson, match="charset"):
        parse_json_object(b'{"a":1}', "utf-7")


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_the_one_error(raw: bytes) -> None:
    try:
        assert isinstance(parse_json_object(raw), dict)
    except InvalidJson:
        return


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/json; charset=utf-8", None])
async def test_answers(content_type: str | None) -> None:
    """REST-001 and vector T16: the exact 400; the content type does not matter."""
    more = {"Content_Type": content_type} if content_type else {}
    application = Application(Config(), open_engine=fake_engine, packages=[], routes=[try_routes])
    async with drive(application) as driver:
        reply = await driver.request("POST", "/try/echo", body=b'{"cwd":', **more)
        assert (reply.status, reply.body) == (400, b'{"error":"Invalid JSON in request body"}')
        assert reply.headers["content-type"] == "application/json; charset=utf-8"
        reply = await driver.request("POST", "/try/echo", body=b'{"a":[1]}', **more)
        assert (reply.status, reply.json()) == (200, {"a": [1]})
