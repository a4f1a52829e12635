"""How the command line reaches a broker, and what it prints when it does not."""

import json
import time

from typer.testing import CliRunner

from tests.integration.shell import CA, CERTIFICATES, TLS, broker, lines
from wherry.cli.main import app


def test_doctor_looks_at_everything(wherry, tmp_path):
    findings = {row["check"]: row for row in lines(wherry("doctor", "--data", str(tmp_path), "--json"))}
    assert set(findings) == {
        *("python", "wherry", "packages", "optional", "disk sync", "disk space", "data access", "descriptors"),
        *("broker", "clock", "ports", "spark", "java"),
    }
    assert {findings[name]["verdict"] for name in ("python", "packages", "broker", "clock")} == {"ok"}
    assert list(tmp_path.iterdir()) == []


def test_doctor_advises_when_there_is_no_broker(tmp_path):
    done = CliRunner().invoke(app, ["--url", "http://127.0.0.1:1", "doctor", "--data", str(tmp_path)])
    assert "wherry serve" in done.stdout


def test_tab_knows_the_names(wherry, url, request):
    wherry("topic", "create", "{t}")
    wherry("subscription", "create", "{t}", "workers")
    asked = {"_WHERRY_COMPLETE": "complete_bash", "WHERRY_URL": url}
    for words, name in (
        ("wherry browse test_tab", request.node.name),
        (f"wherry consume {request.node.name} w", "workers"),
    ):
        env = asked | {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert CliRunner().invoke(app, [], env=env, prog_name="wherry").stdout.split() == [name]
    env = asked | {"WHERRY_URL": "http://127.0.0.1:1", "COMP_WORDS": "wherry browse t", "COMP_CWORD": "2"}
    assert CliRunner().invoke(app, [], env=env, prog_name="wherry").stdout.split() == [], "no broker answers"


def test_without_a_broker_the_command_fails_at_once():
    began = time.monotonic()
    for words in (["topic", "list"], ["publish", "jobs", "x"], ["consume", "jobs", "w"], ["load", "jobs"]):
        done = CliRunner().invoke(app, ["--url", "http://127.0.0.1:1", *words])
        assert done.exit_code == 1
        assert "is the broker running? wherry serve" in done.stderr
    assert time.monotonic() - began < 10


def test_tls_by_options(tmp_path):
    def run(*words):
        return CliRunner().invoke(app, list(words), catch_exceptions=False)

    with broker(tmp_path, *TLS) as url:
        assert run("--url", url, *CA, "publish", "--create", "jobs", "hello").exit_code == 0
        findings = map(json.loads, run("--url", url, *CA, "doctor", "--json").stdout.splitlines())
        assert {row["check"]: row["verdict"] for row in findings}["broker"] == "ok"
        untrusted = run("--url", url, "topic", "list")
        assert (untrusted.exit_code, "--ca" in untrusted.stderr) == (1, True)
        assert "running" not in untrusted.stderr
        plain = run("--url", url.replace("https:", "http:"), "topic", "list")
        assert (plain.exit_code, f"--url {url}" in plain.stderr) == (1, True)


def test_a_certificate_of_ones_own(tmp_path):
    ours = {"WHERRY_CA": CA[1]}
    shown = {
        "WHERRY_CERT": str(CERTIFICATES / "second.pem"),
        "WHERRY_CERT_KEY": str(CERTIFICATES / "second.key"),
    }
    with broker(tmp_path, *TLS, "--tls-client-ca", CA[1], **ours) as url:
        without = CliRunner().invoke(app, ["--url", url, "topic", "list"], env=ours)
        assert (without.exit_code, "--cert" in without.stderr) == (1, True)
        done = CliRunner().invoke(app, ["--url", url, "topic", "list"], env=ours | shown)
        assert done.exit_code == 0, done.output
