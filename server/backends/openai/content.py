"""ACP content blocks to the message forms of chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["user_content"]


def user_content(blocks: Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The ``content`` of a user message: plain text where text is all there is, else a list of parts."""
    parts = [part for block in blocks if (part := _part(block)) is not None]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(block: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if kind == "image" and isinstance(block.get("data"), str):
        url = f"data:{block.get('mimeType', 'image/png')};base64,{block['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "resource" and isinstance(block.get("resource"), Mapping):
        resource = block["resource"]
        if isinstance(resource.get("text"), str):
            return {"type": "text", "text": f"{resource.get('uri', 'resource')}:\n{resource['text']}"}
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return {"type": "text", "text": f"[{block.get('name') or 'link'}]({block['uri']})"}
    # Nothing the model could read; the caller was told by promptCapabilities what is.
    return None
