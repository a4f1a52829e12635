"""The configuration: what can be set. Where each value comes from is in `sources`."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import unquote_plus

import msgspec

from wherry.broker.opening import CACHE_BYTES_DEFAULT
from wherry.mesh.flow.links import HUBS_MAX, LEAVES_MAX
from wherry.mesh.instance import check_url
from wherry.model import check
from wherry.model.catalog.webhook import check_secret
from wherry.model.errors import InvalidInput
from wherry.model.limits import NODE_NAME_CHARS_MAX
from wherry.node.webhooks.targets import network_of
from wherry.security.oidc.endpoints import checked_issuer
from wherry.security.oidc.rules import Rules
from wherry.wire.http.protocol.bounds import Bounds

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
FLIGHT_PORT = 7072
AMQP_PORT, AMQPS_PORT = 5672, 5671
STOMP_PORT, STOMPS_PORT = 61613, 61614

ORIGIN = r"[a-z][a-z0-9+.-]*://[^/?#@\s]+"
SCOPE = r"^[!#-\[\]-~]{1,256}\Z"
"""A scope of OAuth 2.0 (RFC 6749, 3.3): visible ASCII without quotes and backslashes."""

SCOPES_MAX, CLIENT_CHARS_MAX = 32, 512
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class ServerSection(msgspec.Struct, frozen=True, kw_only=True):
    """The address that the node listens on. `port` 0 lets the system choose.

    Without keys the node accepts requests to its `host`, addresses, `localhost` and `names` only: else a page in a
    browser could let its own name resolve to this node, and send requests. `origins` are the sites whose pages may call
    the node, as in `https://example.org`; `*` is any site, if keys are required.

    With a `unix_socket`, a path, the node listens there too, without TLS; keys are asked for as on the port.

    At shutdown, `/readyz` answers 503 for `linger_s` while requests are still served, so that a load balancer notices
    in time; then requests under way have `drain_s` to end.
    """

    host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    port: Port = 7070
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    unix_socket: Annotated[str, msgspec.Meta(min_length=1, max_length=107)] | None = None
    linger_s: Seconds = 0.0
    drain_s: Seconds = 10.0


class FlightSection(msgspec.Struct, frozen=True, kw_only=True):
    """Arrow Flight, on the host of the server: port 7072, or any free port if the server has `port` 0."""

    enabled: bool = True
    port: Port | None = None

    def port_beside(self, server: ServerSection) -> int:
        """Return the port to listen on; 0 lets the system choose."""
        return self.port if self.port is not None else 0 if server.port == 0 else FLIGHT_PORT


class AmqpSection(msgspec.Struct, frozen=True, kw_only=True):
    """AMQP 0-9-1, on the host of the server: port 5672, with TLS 5671, or any free port if the server has `port` 0.

    `hosts` are the virtual hosts that clients can open. A broker without keys accepts the user `guest`; with
    `any_user` every other name too.
    """

    enabled: bool = True
    port: Port | None = None
    hosts: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=255)], ...] = ("/",)
    any_user: bool = False

    def port_beside(self, server: ServerSection, *, tls: bool) -> int:
        """Return the port to listen on; 0 lets the system choose."""
        usual = AMQPS_PORT if tls else AMQP_PORT
        return self.port if self.port is not None else 0 if server.port == 0 else usual


class StompSection(msgspec.Struct, frozen=True, kw_only=True):
    """STOMP, on the host of the server: port 61613, with TLS 61614, or any free port if the server has `port` 0.

    Its virtual hosts and users are those of AMQP: `amqp.hosts`, `amqp.any_user`. A client has `login_s` to log in,
    `frame_s` to send a whole frame, `write_s` to read some of the bytes that it was sent, `stall_s` to make room in a
    full buffer that it declared. `backlog_bytes` may wait for a subscription to a topic, by default an eighth of
    `storage.cache_bytes`; `held_bytes` is the bound on incomplete frames of all clients.
    """

    enabled: bool = True
    port: Port | None = None
    connections: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    login_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 10.0
    frame_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    write_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    stall_s: Seconds = 5.0
    backlog_bytes: Annotated[int, msgspec.Meta(ge=1 << 10, le=1 << 44)] | None = None
    held_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)] = 256 << 20

    def port_beside(self, server: ServerSection, *, tls: bool) -> int:
        """Return the port to listen on; 0 lets the system choose."""
        usual = STOMPS_PORT if tls else STOMP_PORT
        return self.port if self.port is not None else 0 if server.port == 0 else usual


class StorageSection(msgspec.Struct, frozen=True, kw_only=True):
    """The directory of the data, and the memory for recent messages."""

    path: Annotated[str, msgspec.Meta(min_length=1)] = "wherry-data"
    cache_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)] = CACHE_BYTES_DEFAULT


class TlsSection(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files; none means no TLS. With a `client_ca`, clients must (or may) show a certificate."""

    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    client_certificates: Literal["required", "optional"] = "required"


class SecuritySection(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests need an API key: `auto` means as soon as there is one when the broker starts.

    `open` allows a broker without keys to listen on an address that other machines can reach.
    """

    keys: Literal["auto", "on", "off"] = "auto"
    open: bool = False


class OidcSection(msgspec.Struct, frozen=True, kw_only=True):
    """The identity provider whose access tokens are accepted beside API keys; none without an `issuer`.

    `issuer` is its URL as in its tokens, and `audiences` are the names of this node: a token must have one of them.
    `rules` turn claims into rights, as in `realm:clerk -> publish:orders.*`. If `parties` are given, only tokens that
    were issued to these clients are accepted. `unmarked_tokens` accepts tokens that do not state that they are access
    tokens. `name_claim` is the claim that names the caller. Clocks may differ by `leeway_s`.

    `console_client` is the public client of the provider by which people sign in at the console, and `console_scopes`
    are the scopes that it asks for, beside `openid`; without one the console asks for keys and tokens alone.

    The provider's keys are used for `keys_kept_s` while it cannot be reached, and fetched for a key that is not known
    at most once in `refetch_s`. `ca` is a file with the certificates to trust there, if not those of the system.
    """

    issuer: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    audiences: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()
    rules: tuple[str, ...] = ()
    parties: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()
    unmarked_tokens: bool = False
    name_claim: Annotated[str, msgspec.Meta(min_length=1)] = "sub"
    console_client: str | None = None
    console_scopes: tuple[Annotated[str, msgspec.Meta(pattern=SCOPE)], ...] = ()
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    keys_kept_s: Annotated[float, msgspec.Meta(ge=1, le=604_800)] = 3_600.0
    refetch_s: Annotated[float, msgspec.Meta(ge=1, le=3_600)] = 10.0
    ca: str | None = None

    def check(self, keys: str) -> None:
        """Raise `InvalidInput` for values that contradict each other; `keys` is `security.keys`."""
        Rules(self.rules)
        if self.issuer is None:
            if self.audiences or self.rules or self.console_client is not None or self.console_scopes:
                raise InvalidInput("oidc.issuer", None, "the URL of the provider, since other values of oidc are set")
            return
        checked_issuer(self.issuer)
        if not self.audiences:
            raise InvalidInput("oidc.audiences", (), "at least one name of this node, which a token must have as `aud`")
        self._check_console()
        if keys == "off":
            raise InvalidInput("security.keys", keys, "auto or on: access tokens mean nothing where all may do all")

    def _check_console(self) -> None:
        client = self.console_client
        if client is None:
            if self.console_scopes:
                raise InvalidInput("oidc.console_client", None, "a client of the provider, since it has scopes")
            return
        check.graphic("oidc.console_client", client, CLIENT_CHARS_MAX)
        if self.parties and client not in self.parties:
            raise InvalidInput("oidc.console_client", client, "one of oidc.parties: other tokens are refused")
        if len(self.console_scopes) > SCOPES_MAX:
            raise InvalidInput("oidc.console_scopes", len(self.console_scopes), f"at most {SCOPES_MAX} scopes")


class WebhooksSection(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that the node makes: whether to loopback, link-local and private addresses too, and how many at a time.

    `allow` names networks that may be called in any case. With a `secret`, calls with outcomes are signed.
    """

    allow_private: bool = False
    calls: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    allow: tuple[str, ...] = ()
    secret: str | None = None


TRUSTED_MAX = 64
"""Patterns of addresses: each is compared with each record."""


class MeshSection(msgspec.Struct, frozen=True, kw_only=True):
    """The mesh of `flow` topics. `node` is the name of this node; none means that this node has no peers.

    `peers` are the addresses of other nodes; `hub` is that of the hub, and makes this node a leaf, which has no other
    peers. With `discover`, the others are found by the topic `system.peers`, where each node announces itself every
    `announce_s` under its `url`, by default that of its HTTP port. `key` is an API key of the peers, and `ca` a file
    of certificates to trust. With a key, only addresses like one of `trusted` are connected to because a record says
    so, such as `https://*.mesh.example:7070`. Peers keep what this node has not read, up to `backlog_messages` and
    `backlog_bytes` of each topic; then they cut it off.
    """

    node: str | None = None
    url: str | None = None
    peers: tuple[str, ...] = ()
    hub: str | None = None
    discover: bool = False
    announce_s: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] = 5.0
    key: str | None = None
    ca: str | None = None
    trusted: tuple[str, ...] = ()
    backlog_messages: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 1_000_000
    backlog_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 1 << 30

    def check(self) -> None:
        """Raise `InvalidInput` for values that contradict each other."""
        if self.node is not None:
            check.graphic("mesh.node", self.node, NODE_NAME_CHARS_MAX)
        elif self.peers or self.hub is not None or self.discover:
            raise InvalidInput("mesh.node", None, "the name of this node, since it has peers")
        if self.hub is not None and self.peers:
            raise InvalidInput("mesh.peers", self.peers, "none together with mesh.hub: a leaf has its hub alone")
        if len(self.peers) > HUBS_MAX + LEAVES_MAX - 1:
            raise InvalidInput("mesh.peers", len(self.peers), f"at most {HUBS_MAX + LEAVES_MAX - 1} addresses")
        if len(self.trusted) > TRUSTED_MAX or not all(self.trusted):
            raise InvalidInput(
                "mesh.trusted", self.trusted, f"at most {TRUSTED_MAX} addresses, with * for any part of a name"
            )
        for name, url in [("peers", each) for each in self.peers] + [("hub", self.hub), ("url", self.url)]:
            if url is not None:
                _check_node_url(f"mesh.{name}", url)


def _check_node_url(field: str, url: str) -> None:
    try:
        check_url(url)
    except InvalidInput as fault:
        raise InvalidInput(field, url, fault.allowed) from None


class MetricsSection(msgspec.Struct, frozen=True, kw_only=True):
    """Sinks by the names of their entry points (`statsd?port=8125`), and how often they are flushed.

    `traces` sends spans to a collector of OpenTelemetry: to `traces_url`, or as the variables `OTEL_…` set.
    """

    sinks: tuple[str, ...] = ()
    flush_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 10.0
    traces: bool = False
    traces_url: str | None = None


def masked(sink: str) -> str:
    """Return a sink without its secrets, which are the values of `header.<name>`."""
    name, mark, query = sink.partition("?")
    options = (option.partition("=") for option in query.split("&"))
    shown = (
        f"{key}=…" if unquote_plus(key).startswith("header.") else key + equals + value
        for key, equals, value in options
    )
    return name + mark + "&".join(shown)


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """The level and format of logs: `auto` is text on a terminal and JSON lines elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All sections. `wherry.toml` is written in this shape."""

    server: ServerSection = ServerSection()
    flight: FlightSection = FlightSection()
    amqp: AmqpSection = AmqpSection()
    stomp: StompSection = StompSection()
    storage: StorageSection = StorageSection()
    tls: TlsSection = TlsSection()
    limits: Bounds = Bounds()
    security: SecuritySection = SecuritySection()
    oidc: OidcSection = OidcSection()
    webhooks: WebhooksSection = WebhooksSection()
    mesh: MeshSection = MeshSection()
    metrics: MetricsSection = MetricsSection()
    log: LogSection = LogSection()

    def checked(self) -> Config:
        """Return this configuration, or raise `InvalidInput` for values that contradict each other."""
        tls = self.tls
        if (tls.certificate is None) != (tls.key is None):
            missing = "tls.key" if tls.key is None else "tls.certificate"
            raise InvalidInput(missing, None, "a path: a certificate and its key come together")
        if tls.client_ca is not None and tls.certificate is None:
            raise InvalidInput("tls.certificate", None, "a path, since tls.client_ca is set")
        for origin in self.server.origins:
            if origin != "*" and not re.fullmatch(ORIGIN, origin):
                raise InvalidInput("server.origins", origin, "origins, as in https://example.org:8443, or *")
        self.oidc.check(self.security.keys)
        for network in self.webhooks.allow:
            network_of("webhooks.allow", network)
        self.mesh.check()
        if self.webhooks.secret is not None:
            check_secret("webhooks.secret", self.webhooks.secret)
        return self
