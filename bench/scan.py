"""`python -m bench.scan URL TOPIC files|flight`: reads a whole topic again and again, until it is ended.

With `files` as Spark on this machine does, with `flight` as a reader from elsewhere.
"""

from __future__ import annotations

import json
import sys

from wherry.spark.link import FlightLink


def main() -> None:
    """Read the topic for ever."""
    url, topic, way = sys.argv[1:]
    link = FlightLink(url)
    while True:
        for ticket in link.parts({"topic": topic, "columns": ["offset", "key", "published", "payload"]}):
            for _ in link.read(json.loads(ticket), files=way == "files"):
                pass


if __name__ == "__main__":
    main()
