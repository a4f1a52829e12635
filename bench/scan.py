"""`python -m bench.scan URL TOPIC`: reads a whole topic over Flight again and again, until it is ended."""

from __future__ import annotations

import sys

from pyarrow import flight


def main() -> None:
    """For ever."""
    client = flight.connect(sys.argv[1])
    while True:
        for endpoint in client.get_flight_info(flight.FlightDescriptor.for_path(sys.argv[2])).endpoints:
            for _ in client.do_get(endpoint.ticket):
                pass


if __name__ == "__main__":
    main()
