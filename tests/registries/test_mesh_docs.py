"""The page about registries: its program runs, and each URL on it opens."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType

import pytest

from wherry.mesh.opening import open_registry

PAGE = (Path(__file__).parents[2] / "docs" / "mesh.md").read_text(encoding="utf-8")
URLS = sorted(set(re.findall(r"(?:gossip|static|dns|zk)://[^\s`\"]+", PAGE)))


def test_the_program_runs_as_printed(zookeeper):
    (program,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        if "zk1.example:2181,zk2.example:2181/shop" in each
    ]
    here = program.replace("zk1.example:2181,zk2.example:2181", zookeeper.address)
    code = compile(here, "docs/mesh.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)

    async def play() -> None:
        running = eval(code, {})
        assert inspect.iscoroutine(running)
        await running

    asyncio.run(play())


@pytest.mark.parametrize("url", [url for url in URLS if "…" not in url])
def test_each_url_opens(url):
    open_registry(url)


def test_the_page_has_urls_of_each_registry():
    assert {url.partition(":")[0] for url in URLS} == {"gossip", "static", "dns", "zk"}
