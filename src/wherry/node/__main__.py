"""`python -m wherry.node`: serve, with the flags of `sources.FLAGS`. `wherry serve` has more options."""

from __future__ import annotations

import argparse
import sys

from wherry.model.errors import InvalidInput
from wherry.node.process import run
from wherry.node.sources import FLAGS, load


def main() -> int:
    """Read the flags and the configuration, then serve."""
    parser = argparse.ArgumentParser(prog="python -m wherry.node", description="Serve a broker over HTTP.")
    parser.add_argument("--config", help="a TOML file; wherry.toml if it is there")
    for flag, name in FLAGS.items():
        if flag == "--open":
            parser.add_argument(flag, action="store_const", const=True, help="serve other machines without keys")
        else:
            parser.add_argument(flag, metavar="VALUE", help=f"sets {name}")
    given = vars(parser.parse_args())
    flags = {flag: value for flag in FLAGS if (value := given[flag.strip("-").replace("-", "_")]) is not None}
    try:
        effective = load(given["config"], flags=flags)
    except InvalidInput as fault:
        print(f"wherry: {fault}", file=sys.stderr)
        return 2
    return run(effective.config)


if __name__ == "__main__":
    sys.exit(main())
