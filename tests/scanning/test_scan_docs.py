"""The page and the example run as printed."""

import re
import runpy
from pathlib import Path

import wherry

ROOT = Path(__file__).parents[2]


def test_the_blocks_of_the_page(broker, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WHERRY_FLIGHT_URL", broker.url)
    broker.link.action("create-topic", {"name": "orders"})
    broker.link.action("subscribe", {"topic": "orders", "name": "keeps"})
    try:
        broker.publish("orders", [b"1", b"2", b"3"], key=["ann", "bob", "ann"])
        (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "scan.md").read_text(), re.DOTALL)
        script = tmp_path / "block.py"
        script.write_text(block)
        runpy.run_path(str(script))
        printed = capsys.readouterr().out
        assert "shape: (2, 2)" in printed
        assert re.search(r"ann\s*│\s*2", printed)
        assert printed.rstrip().endswith("3")
    finally:
        broker.link.action("delete-topic", {"topic": "orders"})


def test_every_option_is_on_the_page():
    page = (ROOT / "docs" / "scan.md").read_text()
    names = [name for name in wherry.scan.__annotations__ if name not in ("topic", "return")]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_example(broker, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WHERRY_FLIGHT_URL", broker.url)
    monkeypatch.setenv("WHERRY_URL", broker.http)
    runpy.run_path(str(ROOT / "examples" / "scan.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"Bonn ┆ 20.0.*Oslo ┆ 65.0", printed, re.DOTALL)
    assert "bad: [(" in printed
    assert "count: [(4,)]" in printed
    assert "Rome" in printed.splitlines()[-1]
