"""`/api`: lists by the page, by name, in an order, with some columns. Shapes and statuses are RabbitMQ's."""

from __future__ import annotations

import asyncio

import pytest

from tests.amqp.tools import ask, config
from wherry.node.node import Node


@pytest.mark.rows("Q12")
def test_lists_come_by_the_page_and_by_name(tmp_path):
    async def main() -> None:
        async with Node(config(tmp_path)) as node:
            for name in ("abc", "def", "ghi.1", "ABD"):
                await ask(node, f"PUT queues/%2F/{name}", {"durable": True})

            async def names(query: str) -> list[str]:
                found = (await ask(node, f"GET queues/%2F?{query}"))[1]
                return [each["name"] for each in (found["items"] if isinstance(found, dict) else found)]

            page = (await ask(node, "GET queues?page=2&page_size=3&columns=name,vhost"))[1]
            counts = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
            assert [page[name] for name in counts] == [4, 1, 2, 2, 3, 4]
            assert page["items"] == [{"name": "ghi.1", "vhost": "/"}]
            assert await names("page=1&name=ab") == ["ABD", "abc"]
            assert await names("page=1&name=%5E(ab%7Cgh)&use_regex=true&sort=name") == ["ABD", "abc", "ghi.1"]
            assert await names("name=ab") == ["ABD", "abc", "def", "ghi.1"]  # only with a page, as on RabbitMQ
            assert await names("sort=name&sort_reverse=true") == ["ghi.1", "def", "abc", "ABD"]
            assert (await ask(node, "GET queues/%2F/abc?columns=name,none"))[1] == {"name": "abc"}
            assert (await ask(node, "GET consumers?columns=queue.name"))[1] == []
            wrong = ("page=3&page_size=3", "page=0", "page=x", "page=1&page_size=501", "page=1&use_regex=true&name=(")
            for query in wrong:
                assert (await ask(node, f"GET queues?{query}"))[0] == 400, query
            heavy = "page=1&use_regex=true&name=(a%2B)%2B%24"  # a regex engine that backtracks would never end
            await ask(node, f"PUT queues/%2F/{'a' * 60}b", {"durable": True})
            assert await names(heavy) == []

    asyncio.run(main())
