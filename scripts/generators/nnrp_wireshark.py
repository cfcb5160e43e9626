"""docs/wireshark/nnrp.lua: a Wireshark dissector made from the layouts."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, IntFlag

from protocol.layout import Field, Structure
from protocol.nnrp.annotate import LAYOUTS
from protocol.nnrp.enums import ExtensionKind, ExtType, MessageType
from protocol.nnrp.messages import MESSAGES

__all__ = ["documents"]

PATH = "docs/wireshark/nnrp.lua"

_HEAD = """-- NNRP/1 preview3 for Wireshark and tshark.
-- Generated from the declarations in protocol/nnrp by `python -m scripts.generate`; do not edit.
-- How to load it: docs/nnrp-wireshark.md.

local nnrp = Proto("nnrp", "Neural Network Runtime Protocol NNRP/1")

-- Filled below: name of a structure -> list of fields {offset, size, ProtoField, kind, mask, name}.
local layouts = {}
local sizes = {}
local fields = {}
local experts = {
  reserved = ProtoExpert.new("nnrp.expert.reserved", "Reserved field is not zero", expert.group.PROTOCOL, expert.severity.WARN),
  bits = ProtoExpert.new("nnrp.expert.bits", "Unknown bits are set", expert.group.PROTOCOL, expert.severity.WARN),
  value = ProtoExpert.new("nnrp.expert.value", "Unknown enumeration value", expert.group.PROTOCOL, expert.severity.WARN),
  length = ProtoExpert.new("nnrp.expert.length", "Lengths disagree", expert.group.MALFORMED, expert.severity.ERROR),
}
nnrp.experts = { experts.reserved, experts.bits, experts.value, experts.length }

local function add(structure, offset, size, field, kind, mask, name, values)
  local entry = { offset = offset, size = size, field = field, kind = kind, mask = mask, name = name, values = values }
  layouts[structure] = layouts[structure] or {}
  table.insert(layouts[structure], entry)
  table.insert(fields, field)
end
"""

_BODY = """
local payload_field = ProtoField.bytes("nnrp.payload", "payload")
local text_field = ProtoField.string("nnrp.text", "text")
local body_field = ProtoField.bytes("nnrp.body", "body")
table.insert(fields, payload_field)
table.insert(fields, text_field)
table.insert(fields, body_field)
nnrp.fields = fields
nnrp.prefs.port = Pref.uint("TCP port", 4171, "Port on which NNRP is expected; other ports are recognised by content")

-- Adds one structure to the tree and returns its values by name.
local function structure(name, tvb, tree, label)
  local branch = tree:add(nnrp, tvb(0, sizes[name]), label or name)
  local values = {}
  for _, entry in ipairs(layouts[name]) do
    local range = tvb(entry.offset, entry.size)
    local item = branch:add_le(entry.field, range)
    if entry.kind ~= "text" and entry.size <= 4 then
      local value = range:le_uint()
      values[entry.name] = value
      if entry.kind == "reserved" and value ~= 0 then item:add_proto_expert_info(experts.reserved) end
      if entry.kind == "enum" and entry.values[value] == nil then item:add_proto_expert_info(experts.value) end
      if entry.kind == "bitmap" then
        if bit.band(value, bit.bnot(entry.mask)) ~= 0 then item:add_proto_expert_info(experts.bits) end
        local names = {}
        for flag, flag_name in pairs(entry.values) do
          if bit.band(value, flag) ~= 0 then table.insert(names, flag_name) end
        end
        table.sort(names)
        if #names > 0 then item:append_text(" (" .. table.concat(names, ", ") .. ")") end
      end
    elseif entry.kind == "reserved" and range:le_uint64() ~= UInt64(0, 0) then
      item:add_proto_expert_info(experts.reserved)
    end
  end
  return values, branch
end

local function padded(size) return size + (-size) % 8 end

local function bytes(tvb, offset, size, tree, label)
  if size > 0 and offset + size <= tvb:len() then
    tree:add(payload_field, tvb(offset, size)):prepend_text(label .. ", ")
  end
end

-- Control extension entries from offset to the end.
local function extensions(tvb, offset, tree)
  while offset < tvb:len() do
    if tvb:len() - offset < 8 then
      tree:add_proto_expert_info(experts.length)
      return
    end
    local kind = tvb(offset, 2):le_uint()
    local size = tvb(offset + 4, 4):le_uint()
    if size > tvb:len() - offset - 8 then
      tree:add_proto_expert_info(experts.length)
      return
    end
    local name = extension_types[kind] or string.format("extension 0x%04x", kind)
    local _, branch = structure("CONTROL_EXTENSION_HEADER", tvb(offset), tree, name)
    local layout = extension_layouts[kind]
    if layout and size >= sizes[layout] then
      structure(layout, tvb(offset + 8), branch)
    else
      bytes(tvb, offset + 8, size, branch, "payload")
    end
    offset = offset + 8 + padded(size)
  end
end

local function regions(tvb, tree, count)
  if tvb:len() < 32 then
    bytes(tvb, 0, tvb:len(), tree, "bare payload")
    return
  end
  local prelude = structure("BODY_REGION_PRELUDE", tvb, tree)
  local sum = 32 + prelude.inline_object_bytes + prelude.object_reference_bytes + prelude.typed_payload_descriptor_bytes
    + prelude.typed_payload_frame_bytes + prelude.extension_descriptor_bytes + prelude.extension_payload_bytes
  if sum ~= tvb:len() then
    tree:add_proto_expert_info(experts.length)
    return
  end
  local offset = 32
  local stop = offset + prelude.inline_object_bytes
  while offset + 16 <= stop do
    local object, branch = structure("INLINE_OBJECT_HEADER", tvb(offset), tree)
    if object.object_bytes > stop - offset - 16 then
      branch:add_proto_expert_info(experts.length)
      return
    end
    bytes(tvb, offset + 16, object.object_bytes, branch, "object")
    offset = offset + 16 + padded(object.object_bytes)
  end
  offset = stop
  stop = offset + prelude.object_reference_bytes
  while offset + 16 <= stop do
    structure("OBJECT_REFERENCE", tvb(offset), tree)
    offset = offset + 16
  end
  offset = stop
  stop = offset + prelude.typed_payload_descriptor_bytes
  local frames = stop
  local legacy = count > 0 and prelude.typed_payload_descriptor_bytes == count * 16
  local name = legacy and "TYPED_PAYLOAD_DESCRIPTOR_V2" or "TYPED_PAYLOAD_DESCRIPTOR"
  while offset + sizes[name] <= stop do
    local described, branch = structure(name, tvb(offset), tree)
    local start = frames + (described.offset or described.payload_offset)
    bytes(tvb, start, described.length or described.payload_length, branch, "payload")
    offset = offset + sizes[name]
  end
  offset = frames + prelude.typed_payload_frame_bytes
  stop = offset + prelude.extension_descriptor_bytes
  while offset + 16 <= stop do
    local frame, branch = structure("EXTENSION_FRAME_DESCRIPTOR", tvb(offset), tree)
    local layout = frame_layouts[frame.extension_kind]
    local start = stop + frame.payload_offset
    if layout and frame.payload_length >= sizes[layout] and start + frame.payload_length <= tvb:len() then
      structure(layout, tvb(start), branch)
    else
      bytes(tvb, start, frame.payload_length, branch, "payload")
    end
    offset = offset + 16
  end
end

local function data_body(tvb, tree, meta)
  local flat = meta.payload_kind_bitmap == 1 and meta.payload_frame_count == 0
    and (meta.submit_mode or 0) == 0 and (meta.object_ref_mask or 0) == 0
  if flat then
    bytes(tvb, 0, tvb:len(), tree, "flat tensor")
  else
    regions(tvb, tree, meta.payload_frame_count)
  end
end

local function control_body(name, tvb, tree, meta)
  local offset = 0
  local function block(label, size)
    size = math.min(size or 0, tvb:len() - offset)
    bytes(tvb, offset, size, tree, label)
    offset = offset + size
  end
  if name == "CLIENT_HELLO" then
    local split = math.min(meta.control_extension_bytes, tvb:len())
    if split > 0 then extensions(tvb(0, split):tvb(), 0, tree) end
    offset = split
    block("auth", meta.auth_bytes)
    return
  end
  if name == "ERROR" then
    local size = math.min(meta.diagnostic_bytes, tvb:len())
    if size > 0 then tree:add(text_field, tvb(0, size)) end
    offset = size
  elseif name == "CACHE_PUT" then
    block("object", meta.object_bytes)
  elseif name == "SESSION_OPEN" or name == "SESSION_OPEN_ACK" then
    block("resume token", meta.resume_token_bytes)
    block("auth", meta.auth_bytes)
  elseif opaque_bodies[name] then
    block("body", tvb:len())
  end
  if offset < tvb:len() then extensions(tvb(offset):tvb(), 0, tree) end
end

local function packet(tvb, pinfo, root)
  pinfo.cols.protocol = "NNRP"
  local tree = root:add(nnrp, tvb(), "NNRP")
  local header = structure("HEADER", tvb, tree, "Header")
  local name = message_types[header.msg_type] or "unknown"
  tree:append_text(string.format(" %s, session %u, frame %u", name, header.session_id, header.frame_id))
  pinfo.cols.info:append(pinfo.private.nnrp_more and ", " .. name or name)
  pinfo.private.nnrp_more = "1"
  local meta = {}
  if layouts[name] and header.meta_len == sizes[name] and header.meta_len > 0 then
    meta = structure(name, tvb(40), tree, "Metadata " .. name)
  elseif header.meta_len ~= (sizes[name] or 0) then
    tree:add_proto_expert_info(experts.length)
    return tvb:len()
  end
  if header.body_len > 0 then
    local range = tvb(40 + header.meta_len, header.body_len)
    local branch = tree:add(body_field, range)
    if name == "FRAME_SUBMIT" or name == "RESULT_PUSH" then
      data_body(range:tvb(), branch, meta)
    else
      control_body(name, range:tvb(), branch, meta)
    end
  end
  return tvb:len()
end

local function length(tvb, pinfo, offset)
  return 40 + tvb(offset + 12, 4):le_uint() + tvb(offset + 16, 4):le_uint()
end

function nnrp.dissector(tvb, pinfo, root)
  pinfo.cols.info:clear()
  pinfo.private.nnrp_more = nil
  dissect_tcp_pdus(tvb, root, 40, length, packet)
  return tvb:len()
end

local function looks_like_nnrp(tvb, pinfo, root)
  if tvb:len() < 8 or tvb(0, 4):string() ~= "NNRP" or tvb(4, 1):uint() ~= 1 or tvb(7, 1):uint() ~= 40 then
    return false
  end
  pinfo.conversation = nnrp
  nnrp.dissector(tvb, pinfo, root)
  return true
end

nnrp:register_heuristic("tcp", looks_like_nnrp)
DissectorTable.get("tcp.port"):add(nnrp.prefs.port, nnrp)
"""

_OPAQUE: tuple[str, ...] = ("SESSION_PATCH", "SESSION_PATCH_ACK", "CLOSE", "TRANSPORT_PROBE", "TRANSPORT_PROBE_ACK")
_OPAQUE += ("SESSION_MIGRATE", "SESSION_MIGRATE_ACK", "PING", "PONG", "FLOW_UPDATE")

_TLV_LAYOUTS = {
    ExtType.TRANSPORT_POLICY: "TRANSPORT_POLICY",
    ExtType.TRANSPORT_POLICY_ACK: "TRANSPORT_POLICY_ACK",
    ExtType.LOSS_TOLERANCE: "LOSS_TOLERANCE",
    ExtType.LOSS_TOLERANCE_ACK: "LOSS_TOLERANCE",
    ExtType.PAYLOAD_CAPABILITIES: "PAYLOAD_CAPABILITIES",
    ExtType.PAYLOAD_CAPABILITIES_ACK: "PAYLOAD_CAPABILITIES",
    ExtType.OPERATION_EXTENSIONS: "OPERATION_EXTENSIONS",
    ExtType.RESUME_FROM: "RESUME_FROM",
    ExtType.CANCEL_SCOPE: "CANCEL_SCOPE",
    ExtType.OPERATION_STATE: "OPERATION_STATE",
    ExtType.OBJECT_META: "OBJECT_META",
    ExtType.LEASE_INFO: "LEASE_INFO",
}
_FRAME_LAYOUTS = {
    ExtensionKind.SUBMIT_CONTEXT: "SUBMIT_CONTEXT",
    ExtensionKind.OPERATION_STATE: "OPERATION_STATE",
    ExtensionKind.OBJECT_EXPECT: "OBJECT_EXPECT",
}


def documents() -> dict[str, str]:
    parts = [_HEAD, *_value_tables(), *_layout_calls(), _BODY]
    return {PATH: "\n".join(parts)}


def _lua_table(name: str, pairs: list[tuple[int, str]]) -> str:
    inner = ", ".join(f'[{key}] = "{value}"' for key, value in pairs)
    return f"local {name} = {{ {inner} }}"


def _value_tables() -> Iterator[str]:
    yield _lua_table("message_types", [(int(kind), kind.name) for kind in MessageType])
    yield _lua_table("extension_types", [(int(kind), kind.name.lower()) for kind in ExtType])
    yield _lua_table("extension_layouts", [(int(kind), name) for kind, name in _TLV_LAYOUTS.items()])
    yield _lua_table("frame_layouts", [(int(kind), name) for kind, name in _FRAME_LAYOUTS.items()])
    yield "local opaque_bodies = { " + ", ".join(f"{name} = true" for name in _OPAQUE) + " }"
    yield ""
    enums = {field.enum for made in LAYOUTS.values() for field in made.LAYOUT.fields if field.enum is not None}
    for enum in sorted(enums, key=lambda each: each.__name__):
        yield _lua_table(_enum_name(enum), [(int(member), str(member.name).lower()) for member in enum])
    yield ""


def _enum_name(enum: type[IntEnum] | type[IntFlag]) -> str:
    return f"values_{enum.__name__}"


def _layout_calls() -> Iterator[str]:
    for name, made in LAYOUTS.items():
        yield f"sizes.{name} = {made.SIZE}"
        for field in made.LAYOUT.fields:
            yield _field_call(name, made, field)
    for kind, message in MESSAGES.items():
        if kind.name != message.LAYOUT.name:
            raise ValueError(f"{kind.name} and its layout have different names")


def _field_call(structure: str, made: type[Structure], field: Field) -> str:
    abbreviation = f"nnrp.{structure.lower()}.{field.name}"
    if field.scalar.name == "4s":
        proto = f'ProtoField.string("{abbreviation}", "{field.name}")'
        return f'add("{structure}", {field.offset}, {field.scalar.size}, {proto}, "text", 0, "{field.name}")'
    bits = field.scalar.size * 8
    base = "base.HEX" if field.kind == "bitmap" or field.name.endswith(("_code", "_bitmap", "_mask")) else "base.DEC"
    values = _enum_name(field.enum) if field.enum is not None else "nil"
    shown = f", {values}" if field.kind == "enum" else ""
    proto = f'ProtoField.uint{bits}("{abbreviation}", "{field.name}", {base}{shown})'
    kind = field.kind if field.kind in ("enum", "bitmap", "reserved") else "plain"
    mask = field.mask if field.kind == "bitmap" else 0
    return (
        f'add("{structure}", {field.offset}, {field.scalar.size}, {proto}, "{kind}", {mask}, "{field.name}", {values})'
    )
