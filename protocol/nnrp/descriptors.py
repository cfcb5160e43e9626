"""The fixed structures that stand in bodies (nnrp-wire 6, 8, 9, 11.2)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from protocol.layout import Check, Reserved, u8, u16, u32, u64
from protocol.layout_codec import layout
from protocol.nnrp.enums import (
    DescriptorFlags,
    DtypeId,
    ExtensionFlags,
    ExtFlags,
    LayoutId,
    LossTolerance,
    ObjectKind,
    PayloadKind,
    ScalePolicy,
    SchemaFlags,
    SectionFlags,
    StreamSemantics,
    TransportId,
    TransportPolicyKind,
)
from protocol.nnrp.record import Block

__all__ = [
    "BodyRegionPrelude",
    "ControlExtensionHeader",
    "ExtensionFrameDescriptor",
    "InlineObjectHeader",
    "LossToleranceBlock",
    "ObjectReference",
    "PayloadCapabilities",
    "SchemaDescriptor",
    "TensorSectionDesc",
    "TransportPolicy",
    "TransportPolicyAck",
    "TypedPayloadDescriptor",
    "TypedPayloadDescriptorV2",
]


@layout("CONTROL_EXTENSION_HEADER", "6", "[p1-doc 10.3]")
class ControlExtensionHeader(Block, frozen=True, gc=False):
    """Starts one entry of a control extension block; payload and zero padding to a multiple of 8 follow."""

    ext_type: Annotated[int, u16, "0x0000 unused; ranges of section 6"] = 0
    ext_flags: Annotated[ExtFlags, u16] = ExtFlags(0)
    ext_len: Annotated[int, u32, "payload bytes, padding excluded"] = 0


@layout("TRANSPORT_POLICY", "6", "[py3][p2-doc]")
class TransportPolicy(Block, frozen=True, gc=False):
    """Control extension 0x0101, in CLIENT_HELLO."""

    transport_policy: Annotated[TransportPolicyKind, u8, "2.7"] = TransportPolicyKind.AUTO
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    preferred_transport_id: Annotated[TransportId, u32, "0 = no preference"] = TransportId.UNSPECIFIED


@layout("TRANSPORT_POLICY_ACK", "6", "[py3][p2-doc]")
class TransportPolicyAck(Block, frozen=True, gc=False):
    """Control extension 0x0102, in SERVER_HELLO_ACK."""

    transport_policy: Annotated[TransportPolicyKind, u8, "echo of the request"] = TransportPolicyKind.AUTO
    accepted_transport_policy: Annotated[TransportPolicyKind, u8] = TransportPolicyKind.AUTO
    reserved0: ClassVar[Reserved] = Reserved(u16)
    active_transport_id: Annotated[TransportId, u32, "effective id, non-zero in practice"] = TransportId.UNSPECIFIED


@layout("LOSS_TOLERANCE", "6", "[py3][p2-doc]")
class LossToleranceBlock(Block, frozen=True, gc=False):
    """Control extensions 0x0103 (CLIENT_HELLO) and 0x0104 (SERVER_HELLO_ACK)."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("loss_tolerance", "loss_tolerance != 0xff", "inherit exists only at frame level", outcome="UnknownEnum"),
    )

    loss_tolerance: Annotated[LossTolerance, u8, "0..3 (12.5)"] = LossTolerance.STRICT
    reserved0: ClassVar[Reserved] = Reserved(u8)
    reserved1: ClassVar[Reserved] = Reserved(u16)
    reserved2: ClassVar[Reserved] = Reserved(u32)


@layout("PAYLOAD_CAPABILITIES", "6", "[py3][p2-doc]")
class PayloadCapabilities(Block, frozen=True, gc=False):
    """Control extensions 0x0105 (CLIENT_HELLO) and 0x0106 (SERVER_HELLO_ACK)."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("critical_extension_frame_bitmap", "critical_extension_frame_bitmap == 0", "must be 0"),
    )

    payload_kind_bitmap: Annotated[PayloadKind, u32] = PayloadKind(0)
    critical_extension_frame_bitmap: Annotated[int, u32, "0"] = 0


@layout("BODY_REGION_PRELUDE", "8.2", "[seed][p2-doc]")
class BodyRegionPrelude(Block, frozen=True, gc=False):
    """Starts a region body: the lengths of the six regions that follow it, in order and without gaps."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("object_reference_bytes", "object_reference_bytes % 16 == 0", "must be a multiple of 16"),
        Check("extension_descriptor_bytes", "extension_descriptor_bytes % 16 == 0", "must be a multiple of 16"),
    )

    inline_object_bytes: Annotated[int, u32] = 0
    object_reference_bytes: Annotated[int, u32, "multiple of 16"] = 0
    typed_payload_descriptor_bytes: Annotated[int, u32, "= payload_frame_count × 24"] = 0
    typed_payload_frame_bytes: Annotated[int, u32, "0 when payload_frame_count = 0"] = 0
    extension_descriptor_bytes: Annotated[int, u32, "multiple of 16"] = 0
    extension_payload_bytes: Annotated[int, u32] = 0
    body_flags: ClassVar[Reserved] = Reserved(u32)
    reserved0: ClassVar[Reserved] = Reserved(u32)


@layout("INLINE_OBJECT_HEADER", "8.3", "[py3][p2-doc]")
class InlineObjectHeader(Block, frozen=True, gc=False):
    """Starts an inline object; payload and zero padding to a multiple of 8 follow."""

    object_kind: Annotated[ObjectKind, u16, "12.7"] = ObjectKind.CAMERA_BLOCK
    object_flags: ClassVar[Reserved] = Reserved(u16)
    profile_id: Annotated[int, u16] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    object_bytes: Annotated[int, u32, "payload length"] = 0
    reserved1: ClassVar[Reserved] = Reserved(u32)


@layout("OBJECT_REFERENCE", "8.4", "[py3][p2-doc]")
class ObjectReference(Block, frozen=True, gc=False):
    """Names a cached object."""

    object_kind: Annotated[ObjectKind, u16, "12.7"] = ObjectKind.CAMERA_BLOCK
    ref_flags: ClassVar[Reserved] = Reserved(u16)
    cache_namespace: Annotated[int, u32] = 0
    cache_key_hi: Annotated[int, u32] = 0
    cache_key_lo: Annotated[int, u32] = 0


@layout("TYPED_PAYLOAD_DESCRIPTOR", "8.5", "[seed]")
class TypedPayloadDescriptor(Block, frozen=True, gc=False):
    """Describes one payload of the typed payload frame region. Rules over several of them: `regions`."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "descriptor_flags",
            "descriptor_flags & 3 != 3",
            "terminal and partial contradict each other",
            strict_only=True,
        ),
    )

    profile_id: Annotated[int, u16, "registry 11.1"] = 0
    descriptor_flags: Annotated[DescriptorFlags, u16] = DescriptorFlags(0)
    schema_id: Annotated[int, u32] = 0
    schema_version: Annotated[int, u32] = 0
    stream_semantics: Annotated[StreamSemantics, u16, "12.8"] = StreamSemantics.DEFAULT
    reserved0: ClassVar[Reserved] = Reserved(u16)
    offset: Annotated[int, u32, "from the start of the typed payload frame region"] = 0
    length: Annotated[int, u32, "bytes"] = 0

    @property
    def terminal(self) -> bool:
        """The last piece; where a tolerated peer sets both flags, terminal wins (nnrp-wire 8.5)."""
        return bool(int(self.descriptor_flags) & 1)

    @property
    def partial(self) -> bool:
        return int(self.descriptor_flags) & 3 == 2


@layout("TYPED_PAYLOAD_DESCRIPTOR_V2", "8.6", "[p2-doc][py3]")
class TypedPayloadDescriptorV2(Block, frozen=True, gc=False):
    """The 16-byte descriptor of nnrp-py and preview2: not valid preview3, accepted by a tolerant endpoint."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check("payload_kind", "payload_kind and not payload_kind & (payload_kind - 1)", "exactly one bit must be set"),
    )

    payload_kind: Annotated[PayloadKind, u8, "exactly one bit"] = PayloadKind.TOKEN_CHUNK
    descriptor_flags: ClassVar[Reserved] = Reserved(u8)
    profile_id: Annotated[int, u16, "0 = none"] = 0
    payload_offset: Annotated[int, u32] = 0
    payload_length: Annotated[int, u32] = 0
    reserved0: ClassVar[Reserved] = Reserved(u32)


@layout("EXTENSION_FRAME_DESCRIPTOR", "8.7", "[p2-doc][py3]")
class ExtensionFrameDescriptor(Block, frozen=True, gc=False):
    """Describes one extension frame of a region body."""

    extension_kind: Annotated[int, u16, "vendor kinds: nnrp-extensions"] = 0
    extension_flags: Annotated[ExtensionFlags, u16] = ExtensionFlags(0)
    profile_id: Annotated[int, u16] = 0
    reserved0: ClassVar[Reserved] = Reserved(u16)
    payload_offset: Annotated[int, u32, "from the start of the extension payload region"] = 0
    payload_length: Annotated[int, u32] = 0


@layout("TENSOR_SECTION_DESC", "9.3", "[p1-doc][py3]")
class TensorSectionDesc(Block, frozen=True, gc=False):
    """Starts a tensor section; codec table, length table and payload follow."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            "codec_table_bytes",
            "(flags & 1 != 0) == (codec_table_bytes != 0)",
            "mixed_codec goes with a codec table",
        ),
        Check("length_table_bytes", "length_table_bytes % 4 == 0", "must be a multiple of 4"),
        Check(
            "payload_stride_bytes",
            "(flags & 2 != 0) == (payload_stride_bytes != 0)",
            "fixed_stride goes with a non-zero stride",
        ),
    )

    role_id: Annotated[int, u16, "strictly increasing across sections"] = 0
    codec_id: Annotated[int, u8, "default codec; 0 = raw by convention"] = 0
    dtype_id: Annotated[DtypeId, u8] = DtypeId.FP16
    layout_id: Annotated[LayoutId, u8] = LayoutId.NHWC
    scale_policy: Annotated[ScalePolicy, u8] = ScalePolicy.NONE
    flags: Annotated[SectionFlags, u16] = SectionFlags(0)
    element_count_per_tile: Annotated[int, u32] = 0
    codec_table_bytes: Annotated[int, u32, "one u8 per tile with mixed_codec, else 0"] = 0
    length_table_bytes: Annotated[int, u32, "multiple of 4; one u32 per tile"] = 0
    payload_bytes: Annotated[int, u32] = 0
    payload_stride_bytes: Annotated[int, u32, "0 = variable"] = 0
    reserved0: ClassVar[Reserved] = Reserved(u32)


@layout("SCHEMA_DESCRIPTOR", "11.2", "[seed]")
class SchemaDescriptor(Block, frozen=True, gc=False):
    """Header of a schema object; body_bytes of schema body follow. Installing it: the schema registry machine."""

    schema_id: Annotated[int, u32] = 0
    schema_version: Annotated[int, u32] = 0
    profile_id: Annotated[int, u16, "registered, else schema_update_rejected"] = 0
    schema_flags: Annotated[SchemaFlags, u16] = SchemaFlags(0)
    min_version_major: Annotated[int, u8, "≤ 1, else schema_incompatible"] = 1
    max_version_major: Annotated[int, u8, "≥ 1, else schema_incompatible"] = 1
    reserved0: ClassVar[Reserved] = Reserved(u16)
    body_bytes: Annotated[int, u32, "length of the schema body that follows"] = 0
    dependency_count: Annotated[int, u16] = 0
    default_stream_semantics: Annotated[StreamSemantics, u16] = StreamSemantics.DEFAULT
    schema_hash: Annotated[int, u64, "stable digest of the body"] = 0
