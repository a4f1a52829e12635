"""The endpoints of a provider, from its discovery document: what is believed of it, and which URLs may be asked."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec

from wherry.model.errors import InvalidInput
from wherry.security.oidc.compact import parse_strictly

WELL_KNOWN = "/.well-known/openid-configuration"
URL_CHARS_MAX = 2_048
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\.?")
"""The last label of an address that only some readers take for one, such as `2852039166`."""

ALLOWED = "https://…, or http:// on loopback, without a query"


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider has what. An empty text is an endpoint that it does not offer."""

    keys: str
    token: str = ""
    authorization: str = ""
    """Where browsers sign in; empty as well where the provider states challenges of PKCE, and no S256 among them."""
    end_session: str = ""
    names_issuer: bool = False
    """Whether the provider names itself as `iss` when it sends a browser back (RFC 9207)."""


def checked_issuer(url: str) -> str:
    """Return the URL of an issuer, or raise `InvalidInput`: what it says is only believed over TLS, or on loopback."""
    if not _is_safe(url) or "?" in url or "#" in url:
        raise InvalidInput("oidc.issuer", url, ALLOWED)
    return url


def discovery_url(issuer: str) -> str:
    """Return where the discovery document of an issuer is."""
    return issuer.rstrip("/") + WELL_KNOWN


def parse_endpoints(raw: bytes, issuer: str) -> Endpoints:
    """Return the endpoints of a discovery document; raise `ValueError` if it is none, or that of another issuer."""
    document = parse_strictly(raw, depth_max=16)
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError("the discovery document is not of this issuer")
    is_plain = urlsplit(issuer).scheme == "http"
    keys = _url(document, "jwks_uri", is_plain=is_plain)
    if not keys:
        raise ValueError("the discovery document has no jwks_uri that may be asked")
    return Endpoints(
        keys=keys,
        token=_url(document, "token_endpoint", is_plain=is_plain),
        authorization=_url(document, "authorization_endpoint", is_plain=is_plain) if _takes_s256(document) else "",
        end_session=_url(document, "end_session_endpoint", is_plain=is_plain),
        names_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _takes_s256(document: dict[str, Any]) -> bool:
    """Return whether PKCE with S256 can be tried; many providers that take it do not state so."""
    challenges = document.get("code_challenge_methods_supported")
    return not isinstance(challenges, list) or "S256" in challenges


def _url(document: dict[str, Any], name: str, *, is_plain: bool) -> str:
    """Return an endpoint that may be asked; `http` only if the issuer is, so that no provider far away names ours."""
    url = document.get(name, "")
    if not isinstance(url, str) or not _is_safe(url) or "#" in url:  # browsers keep what is behind it over redirects
        return ""
    return url if is_plain or urlsplit(url).scheme == "https" else ""


def _is_safe(url: str) -> bool:
    """Return whether a URL is https, or http of this machine, so that nobody between can change the answer."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or len(url) > URL_CHARS_MAX or not all("!" <= sign <= "~" for sign in url):
        return False
    if "@" in parts.netloc or "\\" in url or not _may_be_asked(host):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def _may_be_asked(host: str) -> bool:
    """Return whether a host is a name, or an address that is not link-local: there clouds answer with secrets."""
    try:
        address = ip_address(host)
    except ValueError:
        return _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) is None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its name or address alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
