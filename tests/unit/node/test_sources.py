"""Configuration: which source wins, which source a value comes from, and how a mistake is reported."""

from typing import Any

import msgspec
import pytest

from wherry.model.errors import InvalidInput
from wherry.node.config import Config
from wherry.node.sinks.sink import find
from wherry.node.sources import FLAGS, NAMES, SECTIONS, load, resolve

FILE = """\
# a comment
[server]
port = 7071
host = "127.0.0.2"
drain_s = 3

[limits]
connections = 5

[metrics]
sinks = ["statsd", "otlp"]
"""


def shown(text="", environment=None, flags=None):
    effective = resolve(text, "wherry.toml", environment or {}, flags or {})
    return {name: (value, source) for name, value, source in effective.settings()}


def test_nothing_given_is_the_default():
    assert resolve("", "wherry.toml", {}, {}).config == Config()
    assert {source for _, source in shown().values()} == {"default"}
    assert list(shown()) == NAMES


def test_flags_beat_the_environment_which_beats_the_file_which_beats_defaults():
    environment = {"WHERRY_SERVER_PORT": "7072", "WHERRY_SERVER_HOST": "::1", "HOME": "/"}
    values = shown(FILE, environment, {"--port": "7073"})
    assert values["server.port"] == (7073, "flag --port")
    assert values["server.host"] == ("::1", "environment WHERRY_SERVER_HOST")
    assert values["server.drain_s"] == (3.0, "file wherry.toml:5")
    assert values["limits.connections"] == (5, "file wherry.toml:8")
    assert values["server.linger_s"] == (0.0, "default")


def test_lists_and_flags_from_text():
    environment = {"WHERRY_METRICS_SINKS": "a, b,", "WHERRY_SECURITY_OPEN": "true", "WHERRY_LIMITS_IDLE_S": "1.5"}
    values = shown(FILE, environment)
    assert values["metrics.sinks"][0] == ("a", "b")
    assert values["security.open"][0] is True
    assert values["limits.idle_s"][0] == 1.5
    assert shown(FILE)["metrics.sinks"] == (("statsd", "otlp"), "file wherry.toml:11")


SAMPLES: dict[str, Any] = {
    "amqp.hosts": ["/", "staging"],
    "stomp.backlog_bytes": 1 << 20,
    "server.origins": ["https://a.example", "https://b.example:8443"],
    "webhooks.allow": ["10.0.0.0/8", "192.168.1.7"],
    "webhooks.secret": "a secret of some length",
    "oidc.issuer": "https://id.example/realms/shop",
    "oidc.rules": ["realm:clerk -> publish:orders.*", "scope:bill -> call:billing.*"],
    "oidc.console_client": "wherry-console",
    "oidc.console_scopes": ["orders", "profile"],
    "tls.certificate": "certificate.pem",
    "tls.key": "key.pem",
    "tls.client_ca": "ca.pem",
    "mesh.node": "a",
    "mesh.url": "http://a.example:7070",
    "mesh.peers": ["http://b.example:7070", "http://c.example:7070"],
    "mesh.hub": "http://b.example:7070",
}
COMPANIONS = {
    "oidc.issuer": ("oidc.audiences",),
    "oidc.audiences": ("oidc.issuer",),
    "oidc.rules": ("oidc.issuer", "oidc.audiences"),
    "oidc.console_client": ("oidc.issuer", "oidc.audiences"),
    "oidc.console_scopes": ("oidc.issuer", "oidc.audiences", "oidc.console_client"),
    "tls.certificate": ("tls.key",),
    "tls.key": ("tls.certificate",),
    "tls.client_ca": ("tls.certificate", "tls.key"),
    "mesh.peers": ("mesh.node",),
    "mesh.hub": ("mesh.node",),
    "mesh.discover": ("mesh.node",),
}
"""Settings that only come together."""


def sample(name: str) -> Any:
    """Return a value of a setting that is not its default."""
    if name in SAMPLES:
        return SAMPLES[name]
    section, field = name.split(".")
    info = msgspec.inspect.type_info(SECTIONS[section][field])
    default = getattr(getattr(Config(), section), field)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    match kinds[0]:
        case msgspec.inspect.LiteralType(values=words):
            return next(word for word in words if word != default)
        case msgspec.inspect.BoolType():
            return not default
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 7 if default is None else type(default)(default * 2 + 1) if name != "server.port" else 7
        case msgspec.inspect.StrType():
            return "some-text"
        case msgspec.inspect.VarTupleType():
            return ["one", "two"]
        case other:
            pytest.fail(f"{name}: what is a value of {other}?")


def as_text(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_set_by_every_source(name):
    wanted = {each: sample(each) for each in (name, *COMPANIONS.get(name, ()))}
    tables: dict[str, list[str]] = {each.split(".")[0]: [] for each in wanted}
    for each, value in wanted.items():
        section, field = each.split(".")
        tables[section].append(f"{field} = {msgspec.json.encode(value).decode()}")
    text = "\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in tables.items())
    environment = {"WHERRY_" + each.replace(".", "_").upper(): as_text(value) for each, value in wanted.items()}
    by_file = resolve(text, "wherry.toml", {}, {})
    by_environment = resolve("", "wherry.toml", environment, {})
    section, field = name.split(".")
    set_to = getattr(getattr(by_file.config, section), field)
    assert set_to == (tuple(wanted[name]) if isinstance(wanted[name], list) else wanted[name])
    assert set_to != getattr(getattr(Config(), section), field)
    assert by_environment.config == by_file.config
    flags = {flag: as_text(wanted[each]) for flag, each in FLAGS.items() if each in wanted}
    if name in FLAGS.values():
        assert resolve("", "wherry.toml", {}, flags).config == by_file.config


def test_secrets_are_not_shown():
    secret = "otlp?url=http://x&header.authorization=Bearer%20s3&header%2Ekey=s3&timeout_s=3"
    values = shown("", {"WHERRY_METRICS_SINKS": f"statsd, {secret}", "WHERRY_WEBHOOKS_SECRET": "s3 of 16 characters"})
    assert values["webhooks.secret"][0] == "…"
    masked = "otlp?url=http://x&header.authorization=…&header%2Ekey=…&timeout_s=3"
    assert values["metrics.sinks"][0] == ("statsd", masked)
    with pytest.raises(InvalidInput) as fault:
        resolve(f'[metrics]\nsinks = ["{secret}", 1]', "wherry.toml", {}, {})
    assert "s3" not in str(fault.value)
    with pytest.raises(InvalidInput) as fault:
        find("no-" + secret)
    assert "s3" not in str(fault.value)


def test_every_flag_sets_something_that_there_is():
    assert set(FLAGS.values()) <= set(NAMES)


def test_what_kubernetes_and_clients_put_into_the_environment_is_not_ours():
    ours = {"WHERRY_PORT": "tcp://1.2.3.4:7070", "WHERRY_PORT_7070_TCP_ADDR": "x", "WHERRY_SERVICE_HOST": "x"}
    assert resolve("", "", {**ours, "WHERRY_SERVICE_PORT_HTTP": "x", "WHERRY_URL": "x", "WHERRY_KEY": "x"}, {})


@pytest.mark.parametrize(
    ("text", "environment", "flags", "message"),
    [
        ("[server]\nprot = 1", {}, {}, "file wherry.toml:2: unknown name: got 'server.prot'.*did you mean port?"),
        ("[sever]\nport = 1", {}, {}, r"file wherry.toml:1: unknown name: got '\[sever\]'.*did you mean server?"),
        ("[zzz]", {}, {}, "one of server, flight, amqp, stomp, storage, tls"),
        ("port = 1", {}, {}, "file wherry.toml:1: unknown name"),
        ("server = 1", {}, {}, r"server \(file wherry.toml:1\): got 1; allowed: a section"),
        ("[server", {}, {}, "file wherry.toml: .*valid TOML"),
        ('[server]\nport = "7070"', {}, {}, r"server.port \(file wherry.toml:2\): got '7070'; .*from 0 to 65535"),
        ("[server]\nport = true", {}, {}, "a whole number from 0 to 65535"),
        ('[server]\nhost = ""', {}, {}, "at least one character"),
        ("", {"WHERRY_SEVER_PORT": "1"}, {}, "environment: .*'WHERRY_SEVER_PORT'.*did you mean WHERRY_SERVER_PORT?"),
        ("", {"WHERRY_LOG_LEVEL": "loud"}, {}, "environment WHERRY_LOG_LEVEL.*got 'loud'.*one of debug, error, info"),
        ("", {"WHERRY_SECURITY_OPEN": "yes"}, {}, "true or false"),
        ("", {"WHERRY_LIMITS_CONNECTIONS": "0"}, {}, "more than 0"),
        ("", {"WHERRY_LIMITS_HEAD_S": "nan"}, {}, "more than 0"),
        ("", {}, {"--port": "65536"}, r"server.port \(flag --port\): got '65536'; .*from 0 to 65535"),
        ("", {}, {"--prot": "1"}, "flag: unknown name: got '--prot'.*did you mean --port?"),
        ('[tls]\nkey = "k.pem"', {}, {}, "tls.certificate: .*come together"),
        ('[tls]\ncertificate = "c.pem"', {}, {}, "tls.key: .*come together"),
        ('[tls]\nclient_ca = "c.pem"', {}, {}, "tls.client_ca is set"),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_what_is_allowed(text, environment, flags, message):
    with pytest.raises(InvalidInput, match=message):
        resolve(text, "wherry.toml", environment, flags)


def test_a_file_that_was_named_must_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(environment={}).config == Config()
    with pytest.raises(InvalidInput, match="No such file"):
        load("other.toml", environment={})
    with pytest.raises(InvalidInput, match="No such file"):
        load(environment={"WHERRY_CONFIG": "other.toml"})
    tmp_path.joinpath("wherry.toml").write_text("[server]\nport = 1\n")
    assert load(environment={}).config.server.port == 1
