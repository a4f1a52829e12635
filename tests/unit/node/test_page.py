"""docs/configuration.md and the code name the same values, defaults and flags."""

import re
import tomllib
from pathlib import Path

from wherry.node.sources import FLAGS, resolve

PAGE = (Path(__file__).parents[3] / "docs/configuration.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<name>\w+\.\w+)` \| (?P<default>none|`[^`]+`) \| (`(?P<flag>--[\w-]+)` )?\|", re.MULTILINE)


def test_the_page_has_every_value_with_its_default_and_its_flag():
    rows = {row["name"]: (row["default"].strip("`"), row["flag"]) for row in ROW.finditer(PAGE)}
    flags = {name: flag for flag, name in FLAGS.items()}
    settings = resolve("", "wherry.toml", {}, {}).settings()
    assert list(rows) == [setting.name for setting in settings]
    for name, value, _ in settings:
        default, flag = rows[name]
        wanted = None if default == "none" else tomllib.loads(f"value = {default}")["value"]
        assert (list(value) if isinstance(value, tuple) else value) == wanted, name
        assert flag == flags.get(name), name
