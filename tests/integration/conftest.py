"""What tests of the command line ask for: a broker to talk to, and a way to run a command."""

import pytest
from typer.testing import CliRunner

from tests.integration.shell import broker
from wherry.cli.main import app


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Yield the address of a broker that may call this machine."""
    with broker(tmp_path_factory.mktemp("broker"), WHERRY_WEBHOOKS_ALLOW_PRIVATE="true") as url:
        yield url


@pytest.fixture
def wherry(url, request):
    """Run a command in this process; it must end with `code`. `{t}` stands for a topic of the test's own."""
    topic = request.node.name.replace("[", "-").replace("]", "")[:60]

    def run(*arguments, code=0, stdin=""):
        words = [word.replace("{t}", topic) for word in arguments]
        done = CliRunner().invoke(app, words, env={"WHERRY_URL": url}, input=stdin, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    return run
