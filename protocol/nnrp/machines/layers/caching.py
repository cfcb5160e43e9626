"""CACHE_PUT, CACHE_ACK and CACHE_INVALIDATE (nnrp-wire 7.15, 13.10). Either end may keep objects for the other."""

from __future__ import annotations

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.descriptors import ObjectReference
from protocol.nnrp.enums import CacheErrorCode, ExtType, LeaseOwnerScope, MessageType, OperationFeatures
from protocol.nnrp.extensions import ControlExtension, ObjectMetaEntry, pack_extensions
from protocol.nnrp.machines.cache_records import CacheEntry, PutAnswer
from protocol.nnrp.machines.connection_table import ConnectionInput
from protocol.nnrp.machines.events import CacheAnswered, CacheInvalidated, CachePutDone
from protocol.nnrp.machines.layers.control import SessionControl
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.reading import object_meta
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.session_table import SessionInput
from protocol.nnrp.machines.store import ObjectStore
from protocol.nnrp.messages import CacheAck, CacheInvalidate, CachePut
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import LeaseInfo, ObjectExpect

__all__ = ["CacheFlow"]


class CacheFlow(SessionControl):
    __slots__ = ("_stores",)

    def _prepare(self) -> None:
        super()._prepare()
        self._stores: dict[int, ObjectStore] = {}

    # Things the application wants

    def put_object(
        self,
        session: Session | None,
        message: CachePut,
        content: bytes,
        meta: ObjectMetaEntry | None = None,
    ) -> None:
        """Store an object at the peer; the answer comes as CacheAnswered. ``session`` None: for the whole connection."""
        self._cache_step_ours(session, MessageType.CACHE_PUT)
        body = content
        if meta is not None:
            body += pack_extensions([ControlExtension.of(ExtType.OBJECT_META, meta)])
        message = message.replace(object_bytes=len(content))
        self._queue(self._checked(Outgoing(message, _id(session), body=body, strict=session is not None)))

    def invalidate_objects(self, session: Session | None, message: CacheInvalidate) -> None:
        """Tell the peer that objects are no longer good, and drop them here as well."""
        self._cache_step_ours(session, MessageType.CACHE_INVALIDATE)
        self._queue(self._checked(Outgoing(message, _id(session), strict=session is not None)))
        store = self._store(session, make=False)
        if store is not None:
            store.invalidate(message)

    def adopt_store(self, session: Session, before: Session) -> None:
        """The session has come back: what it had stored before is stored here now, its leases going on, but for those
        that the lost connection owned."""
        store, before.store = before.store, None
        if store is not None:
            store.adopted_by(session.owns_live)
            store.cache.end_owner(LeaseOwnerScope.CONNECTION)
            session.store = store
            self._stores[session.session_id] = store

    # Things that happened

    def _on_cache_put(self, packet: Packet, now: float) -> CachePutDone:
        session = self._cache_step(packet)
        message = packet.metadata
        content = packet.content
        assert isinstance(message, CachePut)
        assert isinstance(content, ControlBody)
        store = self._store(session, make=True)
        assert store is not None  # it was asked to be made
        answer = store.put(message, bytes(content.object), object_meta(packet), now)
        semantics = session is not None and session.terms.grants(OperationFeatures.CACHE_SEMANTICS)
        self._answer_put(packet, message, answer, store.cache.limits.max_object_bytes, semantics)
        return CachePutDone(session, packet, answer)

    def _on_cache_ack(self, packet: Packet, now: float) -> CacheAnswered:
        return CacheAnswered(self._cache_step(packet), packet)

    def _on_cache_invalidate(self, packet: Packet, now: float) -> CacheInvalidated:
        session = self._cache_step(packet)
        message = packet.metadata
        assert isinstance(message, CacheInvalidate)
        store = self._store(session, make=False)
        keys = () if store is None else store.invalidate(message)
        return CacheInvalidated(session, packet, keys)

    # Inside

    def _find_object(
        self, session: Session, reference: ObjectReference, expected: ObjectExpect | None, now: float
    ) -> CacheEntry | CacheErrorCode:
        """What a reference names, in the session's cache first, then in the connection's; else why it cannot be resolved."""
        missing: CacheErrorCode = CacheErrorCode.CACHE_MISS
        for store in (session.store, self.store):
            if store is not None:
                found = store.find(reference, expected, now)
                if not isinstance(found, CacheErrorCode):
                    return found
                if missing is CacheErrorCode.CACHE_MISS:
                    missing = found
        return missing

    def _store(self, session: Session | None, *, make: bool) -> ObjectStore | None:
        store = self.store if session is None else session.store
        if store is None and make:
            store = self._make_store(session)
            if session is None:
                self.store = store
            else:
                session.store = store
            self._stores[_id(session)] = store
        return store

    def _make_store(self, session: Session | None) -> ObjectStore:
        limits = self.limits.cache
        if session is None:
            return ObjectStore(
                self.schemas,
                limits,
                leases_allowed=self._cache_enabled,
                live_operation=lambda _: False,
                pool=self.limits.cache_pool,
            )
        terms = session.terms
        if terms.lease_ttl_ms:
            limits = limits.with_default(terms.lease_ttl_ms)
        return ObjectStore(
            self.schemas,
            limits,
            leases_allowed=self._cache_enabled if terms.implicit else terms.leases_enabled,
            live_operation=session.owns_live,
            pool=self.limits.cache_pool,
        )

    def _forget(self, session: Session) -> None:
        self._stores.pop(session.session_id, None)
        super()._forget(session)

    def _answer_put(
        self, packet: Packet, message: CachePut, answer: PutAnswer, max_object_bytes: int, semantics: bool
    ) -> None:
        body = b""
        if semantics and answer.stored and answer.lease_id:
            info = LeaseInfo(answer.object_version, answer.lease_id, answer.owner_scope)
            body = pack_extensions([ControlExtension.of(ExtType.LEASE_INFO, info)])
        ack = CacheAck(
            message.cache_namespace,
            message.cache_key_hi,
            message.cache_key_lo,
            answer.status,
            answer.accepted_ttl_ms,
            max_object_bytes,
            answer.detail_code,
        )
        self._reply(packet, ack, body=body)

    def _cache_step(self, packet: Packet) -> Session | None:
        self._step(packet.header)
        if packet.header.session_id == 0:
            return None
        session = self._find_or_open(packet)
        session.step(SessionInput.TRAFFIC, packet.header.msg_type.name)
        return session

    def _cache_step_ours(self, session: Session | None, kind: MessageType) -> None:
        self._step_ours(ConnectionInput.TRAFFIC, kind)
        if session is not None:
            session.step(SessionInput.TRAFFIC, kind.name)


def _id(session: Session | None) -> int:
    return 0 if session is None else session.session_id
