"""The examples of `--help` run as printed, one after another."""

import asyncio
import os
import shlex
import subprocess
from pathlib import Path

from tests.integration.shell import PATIENCE_S, WHERRY, bury, lines
from tests.unit.service.lost.samples import lost_call
from wherry.cli.frame import EXAMPLES
from wherry.service.lost.log import LostLog

ORDER = [
    *(
        "topic create",
        "subscription create",
        "publish",
        "topic list",
        "topic show",
        "topic change",
        "subscription list",
    ),
    *("route put", "route list", "route show", "route publish", "route delete"),
    *("subscription show", "subscription change", "browse", "search", "message show", "message fate", "message amend"),
    *(
        "message cancel",
        "consume",
        "dead list",
        "dead show",
        "dead redrive",
        "dead discard",
        "dead audit",
        "key create",
    ),
    *(
        "key list",
        "key show",
        "key change",
        "key delete",
        "top",
        "load",
        "bench",
        "doctor",
        "config show",
        "completion",
    ),
    *("lost list", "lost show", "lost resend", "lost drop"),
    *("subscription delete", "topic delete"),
]
"""The order in which a reader would come to them.

`serve`, `tour`, services, the mesh and what needs Spark have other tests."""


async def lose(*ids):
    async with LostLog("lost") as log:
        for each in ids:
            await log.keep(lost_call(each))


def test_examples_run_as_printed(tmp_path, monkeypatch, url, wherry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_URL", url)
    Path("README.md").write_text("# Read me\n")
    Path("wherry").write_text(f'#!/bin/sh\nexec {" ".join(WHERRY)} "$@"\n')
    Path("wherry").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    elsewhere = {
        path
        for path in EXAMPLES
        if path in ("serve", "tour", "demo", "mesh") or path.startswith(("pipeline ", "service "))
    }
    assert sorted(ORDER) == sorted(set(EXAMPLES) - elsewhere)
    for path in ORDER:
        if path == "publish":
            wherry("topic", "create", "calls")
            wherry("subscription", "create", "calls", "workers")
            command = [*WHERRY, "consume", "calls", "workers", "--follow", "--count", "1"]
            answering = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if path == "dead list":
            wherry("consume", "jobs", "strict")
            bury(url, "jobs", "cat.png", "dog.png", subscription="strict")
        if path == "key show":
            monkeypatch.setenv("ID", lines(wherry("key", "list", "--json"))[0]["id"])
        if path in ("lost list", "lost drop"):
            asyncio.run(lose("call-1", "call-2"))
        for example in EXAMPLES[path]:
            if any(sign in example for sign in "|$"):
                subprocess.run(["bash", "-ec", example], stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=True)
            else:
                _, *words = shlex.split(example)
                wherry(*words)
        if path == "publish":
            assert answering.wait(PATIENCE_S) == 0
