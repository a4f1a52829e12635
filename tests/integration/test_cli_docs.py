"""Every block of shell in docs/cli.md runs as printed, one after another, and no command is missing there."""

import re
import shutil
from pathlib import Path

import pytest

from tests.integration.shell import CERTIFICATES, TLS, bash, broker, write_commands
from wherry.cli.frame import EXAMPLES
from wherry.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path):
    """Run a block, in a directory with the files that the page names."""
    write_commands(tmp_path)
    for name, file in (("authority.pem", "ca.pem"), ("second.pem", "client.pem"), ("second.key", "client.key")):
        shutil.copy(CERTIFICATES / name, tmp_path / file)

    def run(block, url):
        return bash(block.replace("https://127.0.0.1:7070", url), tmp_path, url)

    return run


def test_the_blocks_run_as_printed(shell, url):
    printed = []
    for block in BLOCKS:
        if "https://127" not in block:
            done = shell(block, url)
            assert done.returncode == 0, (block, done.stderr)
            printed.append(done.stdout)
    assert printed[0].startswith("0-0\n0-1\nhello\nworld\n")
    assert re.search(r"eu=region:eu,size:big", "".join(printed))


def test_the_block_about_tls_runs_as_printed(shell, tmp_path):
    [block] = [block for block in BLOCKS if "https://127" in block]
    with broker(tmp_path, *TLS, "--tls-client-ca", str(CERTIFICATES / "authority.pem")) as url:
        done = shell(block, url)
        assert (done.returncode, done.stderr) == (0, "no topics yet: wherry topic create jobs\n")
        assert shell(block.replace("--cert ", "--debug #"), url).returncode != 0


def test_no_command_and_no_common_option_is_missing():
    rows = [re.findall(r"`([a-z ]+)`", line.split("|")[1]) for line in PAGE.splitlines() if line.startswith("| `")]
    named = {f"{row[0].partition(' ')[0]} {word}" for row in rows for word in row} | {w for row in rows for w in row}
    assert [path for path in EXAMPLES if path not in named] == []
    assert app.registered_callback is not None
    assert app.registered_callback.callback is not None
    options = set(app.registered_callback.callback.__annotations__) - {"ctx", "return", "version"}
    assert [option for option in options if f"`--{option.replace('_', '-')}`" not in PAGE] == []
