"""docs/spark.md: its examples run as printed, and it names what there is."""

import re
from pathlib import Path

import pytest

from wherry.spark.options import KNOWN
from wherry.spark.schema import MESSAGES, TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMED = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)


def test_every_example_runs(spark, broker, tmp_path, capfd):
    name = broker.create(name="orders")
    broker.publish(name, [b'{"id": 1, "city": "Oslo", "amount": 5}', b"{broken"], key=["a", "b"])
    assert len(BLOCKS) == 8
    for block in BLOCKS:
        # Spark takes relative paths and variables from where its Java was started; the topic is of this test.
        code = block.replace('"topic", "orders"', f'"topic", "{name}"').replace('"orders.', f'"{tmp_path}/orders.')
        code = code.replace('.format("wherry")', f'.format("wherry").option("url", "{broker.url}")')
        code = code.replace('    "orders",\n', f'    "{name}",\n    url="{broker.url}",\n')
        code = code.replace('(spark, "orders")', f'(spark, "{name}", url="{broker.url}")').replace(
            "`orders`", f"`{name}`"
        )
        code = code.replace("http://127.0.0.1:7070", broker.http)
        exec(compile(code.replace("session()", "spark"), "docs/spark.md", "exec"), {"spark": spark})
    assert len(broker.payloads(name)) == 1_000, "the stream has read the first two"
    assert spark.read.parquet(f"{tmp_path}/orders.parquet").count() == 2
    assert "Oslo" in capfd.readouterr().out


@pytest.mark.parametrize("name", sorted({name for row in NAMED for name in re.findall(r"\w+", row)}))
def test_what_the_page_names_is_known(name):
    assert name in (*KNOWN, *TABLES, *MESSAGES.names)


def test_the_page_names_all_there_is():
    assert [option for option in KNOWN if f"`{option}`" not in PAGE] == []
