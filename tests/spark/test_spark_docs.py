"""docs/spark.md: its blocks run in their order on a fresh broker, as printed, and it names what there is."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.brokers import broker as started
from wherry.spark.columns.schema import MESSAGES, TABLES
from wherry.spark.options.options import KNOWN

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
NAMED = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)


def test_every_block_runs_in_its_order_on_a_fresh_broker(spark, tmp_path, capfd):
    with started(tmp_path) as own:
        try:
            ran = [_run(kind, block, spark, own, tmp_path) for kind, block in BLOCKS]
        finally:
            spark.sql("DROP TABLE IF EXISTS lasting")
            spark.catalog.dropTempView("orders")
        assert ran.count("python") == len(BLOCKS) - ran.count("sh") - ran.count("sql") == 8
        assert len(own.payloads("orders")) == 1_002, "one by the command, one by SQL, 1,000 by the write"
        assert spark.read.parquet(f"{tmp_path}/orders.parquet").count() == 2
    assert "Oslo" in capfd.readouterr().out


def _run(kind, block, spark, own, folder):
    """Run a block; what differs from the page is where the broker is, and relative paths, which Spark's Java has."""
    if kind == "sh":
        for line in block.splitlines():
            command = [sys.executable, "-m", "wherry", "--url", own.http, *shlex.split(line)[1:]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (line, done.stdout + done.stderr)
    elif kind == "sql":
        for statement in filter(str.strip, block.replace("OPTIONS (", f"OPTIONS (url '{own.url}', ").split(";\n")):
            spark.sql(statement).collect()
    else:
        code = block.replace("session()", "spark").replace('"orders.', f'"{folder}/orders.')
        code = code.replace('.format("wherry")', f'.format("wherry").option("url", "{own.url}")')
        code = code.replace('    "orders",\n', f'    "orders",\n    url="{own.url}",\n')
        code = code.replace('(spark, "orders")', f'(spark, "orders", url="{own.url}")')
        code = code.replace("http://127.0.0.1:7070", own.http)
        exec(compile(code, "docs/spark.md", "exec"), {"spark": spark})
    return kind


@pytest.mark.parametrize("name", sorted({name for row in NAMED for name in re.findall(r"\w+", row)}))
def test_what_the_page_names_is_known(name):
    assert name in (*KNOWN, *TABLES, *MESSAGES.names)


def test_the_page_names_all_there_is():
    assert [option for option in KNOWN if f"`{option}`" not in PAGE] == []
