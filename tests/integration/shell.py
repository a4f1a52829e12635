"""A broker that `wherry serve` started, for tests of the command line, and what they do to it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from wherry import Message, connect

PATIENCE_S = 60
WHERRY = [sys.executable, "-W", "error", "-m", "wherry"]

CERTIFICATES = Path(__file__).parents[1] / "unit" / "security" / "certificates"
TLS = ("--tls-certificate", str(CERTIFICATES / "first.pem"), "--tls-key", str(CERTIFICATES / "first.key"))
CA = ("--ca", str(CERTIFICATES / "authority.pem"))


@contextmanager
def broker(folder, *flags, **variables):
    """Run a broker of its own on a free port; a signal stops it at the end, with everything written."""
    command = [*WHERRY, "serve", "--port", "0", "--data", str(folder / "data"), *flags]
    environment = {**os.environ, **variables}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        printed = ""
        while "Ctrl-C" not in printed:
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            printed += line
        try:
            yield printed.split()[3]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def write_commands(folder):
    """Write the programs that the activated environment of a reader has to `bin` of a folder."""
    (folder / "bin").mkdir()
    for name, words in (("wherry", WHERRY), ("python", WHERRY[:-2])):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        program.chmod(0o755)


def bash(block, folder, url):
    """Run a block of a page in a folder, with its commands, against a broker."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "WHERRY_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def bury(url, topic, *texts, subscription="workers", reason="rejected"):
    """Make dead letters as a consumer makes them that gives up; their texts are their ids."""

    async def main():
        async with connect(url) as client:
            await client.publish(topic, [Message(payload=text.encode(), id=text) for text in texts])
            batch = await client.pull(topic, subscription, len(texts), wait_ms=5_000)
            assert batch.column("id") == list(texts)
            await batch.dead_letter(reason=reason, error="not a picture")

    asyncio.run(main())
