"""Access tokens of an identity provider, as a node takes them: set up by the configuration, shown, and measured."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import msgspec

from wherry.broker.metrics.metrics import Metrics
from wherry.model.catalog.key import Right
from wherry.model.errors import InvalidInput
from wherry.node.config import OidcSection
from wherry.security.access import Access
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.api.terms import json_schema
from wherry.wire.http.pages.sign_in import ProviderView, connectable
from wherry.wire.http.protocol.message import Answer, json_response

if TYPE_CHECKING:
    from wherry.security.oidc.access_tokens import AccessTokens

WAIT_S = 15.0
"""How long a call of Flight waits for keys; a fetch of two documents has its own bound below that."""

WAITERS_MAX = 32
"""Calls of Flight that wait for keys at a time; each has a thread, and is not yet counted as a call."""

Count = Annotated[int, json_schema(minimum=0)]


class IdentityView(msgspec.Struct):
    """The identity provider as this node knows it.

    `has_good_keys` is whether access tokens can be checked. `keys_age_ms` is null until keys were fetched; while the
    provider is not reachable, the keys are used until they are `keys_kept_ms` old. `outcomes` counts verifications
    since the start, by how they ended; a token that was verified before is not verified again.
    """

    issuer: str
    is_reachable: bool
    has_good_keys: bool
    keys: Count
    keys_age_ms: Count | None
    keys_kept_ms: Count
    outcomes: dict[str, Count]


class CallerView(msgspec.Struct):
    """The caller: its name, its rights, and when its token or key expires, in Unix milliseconds."""

    name: str
    rights: tuple[Right, ...]
    expires_ms: int | None


def access_tokens(section: OidcSection) -> AbstractAsyncContextManager[AccessTokens | None]:
    """Return what verifies access tokens as configured; None where no provider is configured."""
    issuer = section.issuer
    if issuer is None:
        return nullcontext()
    try:
        from wherry.security.oidc import opening  # noqa: PLC0415  an extra
        from wherry.security.oidc.rules import Rules  # noqa: PLC0415
        from wherry.security.oidc.verifying import Expectations  # noqa: PLC0415
    except ImportError as fault:
        raise InvalidInput("oidc.issuer", issuer, f"none, or pip install 'wherry[oidc]' ({fault})") from None
    expected = Expectations(
        issuer=issuer,
        audiences=section.audiences,
        parties=section.parties,
        unmarked=section.unmarked_tokens,
        name_claim=section.name_claim,
        leeway_s=section.leeway_s,
    )
    kept_s, refetch_s, tls = section.keys_kept_s, section.refetch_s, _trust(section.ca)
    return opening.access_tokens(expected, Rules(section.rules), keys_kept_s=kept_s, refetch_s=refetch_s, tls=tls)


def _trust(ca: str | None) -> ssl.SSLContext | None:
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as fault:
        raise InvalidInput("oidc.ca", ca, f"a file of PEM certificates ({fault})") from None


def wait_in_threads(access: Access, waiters_max: int = WAITERS_MAX) -> Callable[[Mapping[str, str]], None]:
    """Return how a call of Flight waits, in its own thread, for the key of its token, before it is checked.

    Beyond `waiters_max` a call waits for nothing, and is refused if its key is not known. In the thread of the event
    loop it never waits, since the loop has to bring what is waited for.
    """
    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()
    room = threading.Semaphore(waiters_max)

    def wait(headers: Mapping[str, str]) -> None:
        if threading.get_ident() == loop_thread or not room.acquire(blocking=False):
            return
        try:
            waiting = access.awaited_in(headers)
            if waiting is not None:
                done = asyncio.run_coroutine_threadsafe(_awaited(waiting), loop)
                with suppress(TimeoutError, CancelledError):
                    done.result(WAIT_S)
        finally:
            room.release()

    return wait


async def _awaited(waiting: Awaitable[None]) -> None:
    await waiting


class IdentityEndpoints:
    """The views of the provider, and of who calls, on the HTTP port."""

    def __init__(self, tokens: AccessTokens, access: Access, section: OidcSection) -> None:
        self._tokens, self._access, self._section = tokens, access, section

    def table(self) -> EndpointGroup:
        """Return the endpoints, for the server of the port."""
        table = EndpointGroup("keys")
        table.add("GET", "/v1/identity", "admin", answers={200: IdentityView})(self.show_identity)
        caller = table.add("GET", "/v1/identity/caller", "consume", asks=True, answers={200: CallerView})
        caller(self.show_caller)
        return table

    async def show_caller(self, call: ApiCall) -> Answer:
        """The name and the rights of the caller, by its access token or its API key."""
        key = self._access.caller(call.request.headers)
        view = CallerView(key.name, key.rights, key.expires_ms)
        return json_response(view, headers=[("Cache-Control", "no-store")])

    async def show_identity(self, call: ApiCall) -> Answer:
        """The identity provider whose access tokens are accepted: whether it is reachable, and how old its keys are."""
        provider, age_s = self._tokens.provider, self._tokens.provider.keys_age_s
        view = IdentityView(
            issuer=provider.issuer,
            is_reachable=provider.is_reachable,
            has_good_keys=provider.has_good_keys,
            keys=len(provider.keys),
            keys_age_ms=None if age_s is None else int(age_s * 1_000),
            keys_kept_ms=int(self._section.keys_kept_s * 1_000),
            outcomes=dict(sorted(self._tokens.outcomes.items())),
        )
        return json_response(view, headers=[("Cache-Control", "no-store")])


def console_provider(tokens: AccessTokens, section: OidcSection) -> ProviderView | None:
    """Return how people sign in at the console by the provider, as far as its discovery document is known."""
    if section.console_client is None:
        return None
    found = tokens.provider.endpoints
    scopes = ("openid", *(each for each in section.console_scopes if each != "openid"))
    view = ProviderView(issuer=tokens.provider.issuer, client_id=section.console_client, scopes=scopes)
    if found is None or not found.authorization or not connectable(found.token):
        return view
    return msgspec.structs.replace(
        view,
        authorization_url=found.authorization,
        token_url=found.token,
        end_session_url=found.end_session or None,
        names_issuer=found.names_issuer,
    )


def watch_identity(metrics: Metrics, tokens: AccessTokens) -> None:
    """Add the figures of the provider and of its tokens."""
    from wherry.security.oidc.refusal import TokenRefusal  # noqa: PLC0415  beside what uses it

    provider = tokens.provider
    about = "Whether the last fetch of the identity provider's keys succeeded"
    metrics.gauge("wherry_oidc_provider_up", about, lambda: int(provider.is_reachable))
    about = "Seconds since the identity provider's keys were fetched; -1 if they never were"
    metrics.gauge("wherry_oidc_keys_age_seconds", about, lambda: -1.0 if (age := provider.keys_age_s) is None else age)
    metrics.gauge("wherry_oidc_tokens_kept", "Access tokens that are remembered as verified", lambda: len(tokens))
    about = "Access tokens verified since the start, by outcome"
    outcomes = ("accepted", *(each.value for each in TokenRefusal))
    metrics.count(
        "wherry_oidc_tokens", about, ("outcome",), lambda: {(each,): tokens.outcomes[each] for each in outcomes}
    )
