"""Users and permissions, as tools manage them: a user is a key with a password, a permission is some rights.

RabbitMQ grants by regular expressions over names of queues and exchanges: to configure, to write, to read. Here a right
is of a verb and a pattern with `*`. An expression is granted if a pattern matches the same names, and refused
otherwise: no right may be wider or narrower than what was asked for.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

import msgspec

from wherry.model.catalog.key import (
    ADMINISTRATOR,
    Grant,
    Key,
    Right,
    Verb,
)
from wherry.model.errors import InvalidInput, NotFound
from wherry.queueing.login import GUEST
from wherry.security.passwords import ALGORITHM, hash_of, make_user, with_hash, with_password
from wherry.wire.amqp.management.asking import ManagementAnswer, ManagementCall, Row
from wherry.wire.amqp.management.patterns import patterns

ALL = ".*"
NAME_BYTES_MAX = 255

# --------------------------------------------------------------------------------------------------------------- users


def _users(ask: ManagementCall) -> dict[str, Key]:
    known = ask.queueing.broker.keys()
    return {key.name: key for key in known if key.user is not None}


def _is_known(ask: ManagementCall, name: str) -> bool:
    return ask.queueing.broker.user(name) is not None


def _has_guest(ask: ManagementCall) -> bool:
    """Return whether `guest` may do everything: the broker has no keys, and no user of that name was made."""
    return ask.login.knows_guest and not _is_known(ask, GUEST)


def _user(ask: ManagementCall, name: str) -> Key:
    key = ask.queueing.broker.user(name)
    if key is None:
        if name == GUEST and _has_guest(ask):
            raise InvalidInput("user", name, "another one: a broker without keys has this one, who may do everything")
        raise NotFound("user", name)
    return key


def _shown(key: Key) -> Row:
    tags = list(key.user.tags) if key.user is not None else []
    return {"name": key.name, "password_hash": hash_of(key), "hashing_algorithm": ALGORITHM, "tags": tags, "limits": {}}


def users(ask: ManagementCall) -> list[Row]:
    """Answer `GET users`."""
    ask.check_admin()
    guest = {"name": GUEST, "password_hash": "", "hashing_algorithm": ALGORITHM, "tags": [ADMINISTRATOR], "limits": {}}
    return ([guest] if _has_guest(ask) else []) + [_shown(key) for _, key in sorted(_users(ask).items())]


def user(ask: ManagementCall) -> Row:
    """Answer `GET users/NAME`."""
    for row in users(ask):
        if row["name"] == ask.parts[1]:
            return row
    raise NotFound("user", ask.parts[1])


async def put_user(ask: ManagementCall) -> ManagementAnswer:
    """Answer `PUT users/NAME`: create a user, or replace its password and tags."""
    ask.check_admin()
    name, tags, broker = ask.parts[1], _tags(ask), ask.queueing.broker
    if name == GUEST and _has_guest(ask):
        _user(ask, name)

    def changed(key: Key) -> Key:
        assert key.user is not None
        key = msgspec.structs.replace(key, user=msgspec.structs.replace(key.user, tags=tags))
        if "password" in ask.body:
            return with_password(key, ask.text("password"))
        if ask.body.get("hashing_algorithm", ALGORITHM) != ALGORITHM:
            raise InvalidInput("hashing_algorithm", ask.body["hashing_algorithm"], ALGORITHM)
        return with_hash(key, ask.text("password_hash", ""))

    async with ask.queueing.naming:  # a name belongs to one user, even if two calls create it at once
        known = broker.user(name)
        if known is not None:
            await broker.alter_key(known.id, changed)
        else:
            made = make_user(name, None, tags, now_ms=broker.now_ms(), made_by=ask.login.user)
            await broker.put_key(changed(made))
    return ManagementAnswer(201 if known is None else 204)


def _tags(ask: ManagementCall) -> tuple[str, ...]:
    given = ask.body.get("tags", "")
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(tag, str) for tag in listed):
        raise InvalidInput("tags", given, "text with commas, or a list of text")
    return tuple(tag.strip() for tag in listed if tag.strip())


async def delete_user(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE users/NAME`: delete a user; its connections are cut off within a second."""
    ask.check_admin()
    await ask.queueing.broker.delete_key(_user(ask, ask.parts[1]).id)
    return ManagementAnswer(204)


async def delete_users(ask: ManagementCall) -> ManagementAnswer:
    """Answer `POST users/bulk-delete`: delete the users of a list; unknown names are no error."""
    ask.check_admin()
    wanted = ask.body.get("users")
    if not isinstance(wanted, list):
        raise InvalidInput("users", wanted, "a list of names")
    for name in wanted:
        key = ask.queueing.broker.user(name) if isinstance(name, str) else None
        if key is not None:
            with suppress(NotFound):  # another call was quicker
                await ask.queueing.broker.delete_key(key.id)
    return ManagementAnswer(204)


# --------------------------------------------------------------------------------------------------------- permissions


def permissions(ask: ManagementCall) -> list[Row]:
    """Answer `GET permissions`: list all of them."""
    ask.check_admin()
    hosts = [name for name in ask.queueing.hosts if not ask.queueing.note_of(name).is_shut] if _has_guest(ask) else []
    rows = [_granted(GUEST, Grant(name, ALL, ALL, ALL)) for name in hosts]
    for name, key in sorted(_users(ask).items()):
        rows += [_granted(name, grant) for grant in (key.user.grants if key.user is not None else ())]
    return rows


def _granted(name: str, grant: Grant) -> Row:
    expressions = {"configure": grant.configure, "write": grant.write, "read": grant.read}
    return {"user": name, "vhost": grant.host, **expressions}


def permissions_of_user(ask: ManagementCall) -> list[Row]:
    """Answer `GET users/NAME/permissions`."""
    user(ask)
    return [row for row in permissions(ask) if row["user"] == ask.parts[1]]


def permissions_of_host(ask: ManagementCall) -> list[Row]:
    """Answer `GET vhosts/NAME/permissions`."""
    ask.check_known(ask.parts[1])
    return [row for row in permissions(ask) if row["vhost"] == ask.parts[1]]


def permission(ask: ManagementCall) -> Row:
    """Answer `GET permissions/VHOST/USER`."""
    for row in permissions(ask):
        if (row["vhost"], row["user"]) == (ask.parts[1], ask.parts[2]):
            return row
    raise NotFound("permission", ask.parts[2])


async def put_permission(ask: ManagementCall) -> ManagementAnswer:
    """Answer `PUT permissions/VHOST/USER`: replace what a user may do in a virtual host."""
    host, name = ask.check_known(ask.parts[1]), ask.parts[2]
    grant = Grant(host, ask.text("configure"), ask.text("write"), ask.text("read"))
    if name == GUEST and _has_guest(ask):
        if (grant.configure, grant.write, grant.read) != (ALL, ALL, ALL):
            raise InvalidInput("user", name, "another one: on a broker without keys guest may do everything")
        return ManagementAnswer(201 if await ask.queueing.shut_host(host, shut=False) else 204)
    rights_of(grant)
    return ManagementAnswer(204 if await _grant(ask, _user(ask, name), host, grant) else 201)


async def delete_permission(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE permissions/VHOST/USER`: the user has no rights there, and cannot connect to it."""
    ask.check_admin()
    if ask.parts[2] == GUEST and _has_guest(ask):
        if not await ask.queueing.shut_host(ask.check_known(ask.parts[1]), shut=True):
            raise NotFound("permission", GUEST)
        return ManagementAnswer(204)
    if not await _grant(ask, _user(ask, ask.parts[2]), ask.parts[1], None):
        raise NotFound("permission", ask.parts[2])
    return ManagementAnswer(204)


async def revoke_all(ask: ManagementCall, host: str) -> None:
    """Revoke all grants in a virtual host that is being deleted."""
    for key in _users(ask).values():
        if key.user is not None and any(grant.host == host for grant in key.user.grants):
            with suppress(NotFound):  # a user that was deleted meanwhile
                await _grant(ask, key, host, None)


async def _grant(ask: ManagementCall, key: Key, host: str, grant: Grant | None) -> bool:
    """Replace what a user may do in a virtual host, None for nothing; return whether it had a grant before."""
    was_there = False

    def changed(known: Key) -> Key:
        nonlocal was_there
        assert known.user is not None
        grants = tuple(each for each in known.user.grants if each.host != host)
        was_there = len(grants) < len(known.user.grants)
        grants = grants if grant is None else (*grants, grant)
        rights = dict.fromkeys(right for each in grants for right in rights_of(each))
        user = msgspec.structs.replace(known.user, grants=grants)
        return msgspec.structs.replace(known, rights=tuple(rights), user=user)

    await ask.queueing.broker.alter_key(key.id, changed)
    return was_there


def rights_of(grant: Grant) -> list[Right]:
    """Return the rights that a grant amounts to, or raise `InvalidInput` where no rights are equal to it."""
    configure, write, read = (patterns(field, getattr(grant, field)) for field in ("configure", "write", "read"))
    for field, wider in (("write", write), ("read", read)):
        narrow = [each for each in configure if each not in wider and "*" not in wider]
        if narrow:
            allowed = f"names that {field} has too: who may configure a queue may write to it and read from it here"
            raise InvalidInput("configure", grant.configure, allowed)
    place = f"@{quote(grant.host, safe='')}/"
    rights = [Right("admin", place + each) for each in configure]
    others: list[tuple[Verb, list[str]]] = [("publish", write), ("consume", read)]
    for verb, names in others:  # configure includes both, and a key has a bounded number of rights
        rights += [Right(verb, place + each) for each in names if each not in configure and "*" not in configure]
    return rights
