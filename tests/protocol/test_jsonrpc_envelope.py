"""What kind of message a text is: ACP-050, C-048, C-049, bad JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.jsonrpc import (
    Invalid,
    InvalidJson,
    Notification,
    Problem,
    Request,
    Response,
    clean_json,
    decode_json,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    parse_message,
)


@pytest.mark.parametrize("id", [0, "0", 1, "1", "", -7, 9007199254740991, 1.5])
def test_ids_keep_type_and_value(id: str | int | float) -> None:
    """C-049."""
    message = parse_message(encode_request(id, "m"))
    assert isinstance(message, Request)
    assert message.id == id
    assert type(message.id) is type(id)
    assert json.loads(encode_result(message.id, {}))["id"] == id


def test_the_classes() -> None:
    """ACP-050."""
    request = parse_message(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":[1]}}')
    assert isinstance(request, Request)
    assert bytes(request.params or b"") == b'{"x":[1]}'
    assert parse_message(b'{"jsonrpc":"2.0","method":"a"}') == Notification("a")
    response = parse_message(b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}')
    assert isinstance(response, Response)
    assert response.id is None
    assert response.result is None
    answered = parse_message('{"jsonrpc":"2.0","id":"q","result":null}')
    assert isinstance(answered, Response)
    assert bytes(answered.result or b"") == b"null"


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"5",
        b"null",
        b'"x"',
        b'{"foo":1}',
        b'{"jsonrpc":"1.0","id":1,"method":"a"}',
        b'{"jsonrpc":2.0,"id":1,"method":"a"}',
        b'{"id":1,"method":"a"}',
        b'{"jsonrpc":"2.0","id":null,"method":"a"}',
        b'{"jsonrpc":"2.0","id":true,"method":"a"}',
        b'{"jsonrpc":"2.0","id":{},"method":"a"}',
        b'{"jsonrpc":"2.0","id":[],"result":1}',
        b'{"jsonrpc":"2.0","id":1,"method":5}',
        b'{"jsonrpc":"2.0","id":1,"method":null}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","result":1}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":{}}',
    ],
)
def test_malformed(text: bytes) -> None:
    """ACP-044, ACP-050."""
    message = parse_message(text)
    assert isinstance(message, Invalid)
    assert message.problem is Problem.MALFORMED


@pytest.mark.parametrize("text", [b"[]", b' \n[{"jsonrpc":"2.0","method":"a"}]'])
def test_batches_are_named(text: bytes) -> None:
    """ACP-043, ACP-236."""
    message = parse_message(text)
    assert isinstance(message, Invalid)
    assert message.problem is Problem.BATCH


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[1",
        b"5 x",
        b'{"jsonrpc":"2.0","id":NaN,"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":NaN}',
        b'{"jsonrpc":"2.0","id":1,"method":5,',
        b'{"jsonrpc":"2.0","id":1,"method":"a"} x',
        b'{"params":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b"[" * 10_000 + b"]" * 10_000,
        b"[" * 10_000,
        '\ufeff{"jsonrpc":"2.0","method":"a"}'.encode(),
    ],
    ids=repr,
)
def test_not_json(text: bytes) -> None:
    """ACP-041: NaN, trailing text, a depth of 10,000 and the like are refused, not fatal."""
    message = parse_message(text)
    assert isinstance(message, Invalid)
    assert message.problem is Problem.NOT_JSON
    with pytest.raises(InvalidJson):
        decode_json(text)


def test_duplicate_keys_keep_the_last_value() -> None:
    """Issue 3, bad input."""
    message = parse_message(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b","params":1,"params":2}')
    assert isinstance(message, Request)
    assert (message.id, message.method, bytes(message.params or b"")) == (2, "b", b"2")


def test_lone_surrogates_become_replacement_characters() -> None:
    """C-048: the message is delivered, as valid UTF-8; proper pairs stay what they are."""
    text = rb'{"jsonrpc":"2.0","method":"a","params":["\ud83d","\ude42x","\ud83d\ude42","\\ud83d","\\\ud83d","\uD83d"]}'
    message = parse_message(text)
    assert isinstance(message, Notification)
    assert decode_json(message.params or b"") == ["\ufffd", "\ufffdx", "🙂", "\\ud83d", "\\\ufffd", "\ufffd"]


def test_invalid_utf8_never_reaches_the_next_reader() -> None:
    """C-048: raw parameters are forwarded, so they are mended first."""
    message = parse_message(b'{"jsonrpc":"2.0","method":"a","params":"x\xff\xfe"}')
    assert isinstance(message, Notification)
    assert bytes(message.params or b"").decode("utf-8") == '"x\ufffd\ufffd"'


def test_clean_text_is_not_copied() -> None:
    """A message without anything to mend costs no copy."""
    text = '{"t":"é漢🙂"}'.encode()
    assert clean_json(text) is text


def test_errors() -> None:
    """acp-http section 9: data is optional."""
    assert json.loads(encode_error(None, -32700, "Parse error")) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "Parse error"},
    }
    assert json.loads(encode_error(1, -32603, "x", {"errorKind": "internal"}))["error"]["data"] == {
        "errorKind": "internal"
    }
    assert json.loads(encode_notification("m", {"a": 1})) == {"jsonrpc": "2.0", "method": "m", "params": {"a": 1}}


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    """Fuzz promise: whatever arrives, the answer is a value."""
    parse_message(data)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_params_survive(value: Any) -> None:
    """ACP-050: what a JavaScript peer encodes (surrogates escaped) arrives, lone surrogates replaced."""
    message = parse_message(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", "params": value}))
    assert isinstance(message, Request)
    assert message.params is not None
    msgspec.json.encode(decode_json(message.params))


def test_a_value_close_to_the_depth_limit_is_read() -> None:
    """Sensible nesting is no error."""
    assert decode_json(b"[" * 200 + b"]" * 200)
