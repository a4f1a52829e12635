"""API keys: create, list, change, delete. The token of a key is shown once, in the answer that creates it."""

from __future__ import annotations

import logging
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from wherry.model.catalog.key import Key, Right
from wherry.model.errors import NotFound
from wherry.security.keys import make, own_name
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall, once_durable
from wherry.wire.http.api.terms import MODEL, KeyName, TimeMs
from wherry.wire.http.endpoints.bodies import given, model, part_of
from wherry.wire.http.protocol.message import Answer, Response, json_response

_log = logging.getLogger("wherry.keys")

TABLE = EndpointGroup("keys")
PATH = "/v1/keys/{id}"


RightFields = part_of(Right, "RightFields")
Rights: TypeAlias = Annotated[tuple[RightFields, ...], MODEL["rights"]]  # type: ignore[valid-type]


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """The name of the key, its rights, and when it expires."""

    name: KeyName
    rights: Rights
    expires_ms: TimeMs | None = None


class KeyChange(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a key to change."""

    name: KeyName | UnsetType = UNSET
    rights: Rights | UnsetType = UNSET
    expires_ms: TimeMs | UnsetType | None = UNSET


class KeyView(msgspec.Struct):
    """A key, without its secret."""

    id: str
    name: str
    rights: tuple[Right, ...]
    created_ms: int
    expires_ms: int | None
    made_by: str
    """The name of the caller that made it; empty where no key was asked for."""


class MadeKey(KeyView):
    """A key that was just created, with its token, which cannot be read again."""

    token: str


class KeyList(msgspec.Struct):
    """All keys, by name."""

    keys: list[KeyView]


def _view(key: Key) -> KeyView:
    return KeyView(key.id, key.name, key.rights, key.created_ms, key.expires_ms, key.made_by)


def _known(call: ApiCall) -> Key:
    key = call.service.broker.key(call["id"])
    if key is None:
        raise NotFound("key", call["id"])
    return key


@TABLE.add("GET", "/v1/keys", "admin", answers={200: KeyList})
@once_durable
async def list_keys(call: ApiCall) -> Answer:
    """List all keys, without their secrets."""
    known = call.service.broker.keys()
    return json_response(KeyList([_view(key) for key in known]))


@TABLE.add("POST", "/v1/keys", "admin", body=NewKey, answers={201: MadeKey}, codes=("limit-reached",))
async def make_key(call: ApiCall) -> Answer:
    """Create a key; only this answer shows its `token`."""
    wanted: NewKey = call.body
    now_ms = call.service.broker.now_ms()
    rights = [model(Right, each) for each in wanted.rights]
    made = make(wanted.name, rights, now_ms=now_ms, expires_ms=wanted.expires_ms, made_by=call.request.caller)
    key = await call.service.broker.put_key(made.key)
    _note(call, "made", key)
    view = MadeKey(**msgspec.structs.asdict(_view(key)), token=made.token)
    return json_response(view, 201, [("Cache-Control", "no-store")])


@TABLE.add("GET", PATH, "admin", answers={200: KeyView})
@once_durable
async def get_key(call: ApiCall) -> Answer:
    """Show one key, without its secret."""
    return json_response(_view(_known(call)))


@TABLE.add("PATCH", PATH, "admin", body=KeyChange, answers={200: KeyView})
async def change_key(call: ApiCall) -> Answer:
    """Change name, rights or expiry of a key; its token stays."""
    fields = given(call.body)
    if "rights" in fields:
        fields["rights"] = tuple(model(Right, each) for each in fields["rights"])
    if "name" in fields:
        own_name(fields["name"])
    key = await call.service.broker.change_key(call["id"], **fields)
    _note(call, "changed", key)
    return json_response(_view(key))


@TABLE.add("DELETE", PATH, "admin", answers={204: None})
async def delete_key(call: ApiCall) -> Answer:
    """Delete a key; its token is refused from now on."""
    known = _known(call)
    await call.service.broker.delete_key(call["id"])
    _note(call, "deleted", known)
    return Response(204)


def _note(call: ApiCall, what: str, key: Key) -> None:
    """Log who made, changed or deleted a key: it outlives the token or the key that it was done with."""
    by = repr(call.request.caller) if call.request.caller else "a client without a key"
    _log.info("key %s of %r was %s by %s", key.id, key.name, what, by)
