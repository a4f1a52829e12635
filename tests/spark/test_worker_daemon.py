"""Processes that Spark no longer needs end without a word; everything else is Spark's."""

import re
import socket
import subprocess
import sys

import pytest

from wherry.spark.read.quiet_end import hook_of, install
from wherry.spark.worker_daemon import ENOUGH, quiet

SCRIPT = """
from urllib.request import urlopen
from wherry.spark import session

spark = session(master="local[2]", ui=True)
print(spark.sparkContext.uiWebUrl, "answers", urlopen(spark.sparkContext.uiWebUrl).status)
rows = spark.read.format("wherry").options(topic="{topic}", url="{url}", rowsPerTask="100000").load()
rows.select("key").show(5)
assert rows.head() is not None
print(len(rows.take(7)), "rows,", spark.range(9).count(), "numbers")
"""


def test_a_query_that_has_enough_rows_prints_no_traceback(broker):
    """Run a script as a user does: Java and the workers write to its standard error."""
    topic = broker.create(partitions=2)
    for first in range(0, 400_000, 50_000):
        broker.publish(topic, [b"x" * 200] * 50_000, key=[f"k{n}" for n in range(first, first + 50_000)])
    command = [sys.executable, "-c", SCRIPT.format(topic=topic, url=broker.url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "only showing top 5 rows" in printed
    assert "7 rows, 9 numbers" in printed
    assert re.search(r"http://127\.0\.0\.1:\d+ answers 200", printed), "Spark's UI is served on request"
    assert "Traceback" not in printed


PLANNING = """
import sys
from importlib.machinery import ModuleSpec
from wherry.spark.read import quiet_end

sys.modules["__main__"].__spec__ = ModuleSpec(quiet_end.RUNNER, None)
quiet_end.install()
try:
    raise EOFError
except EOFError:
    raise {fault}
"""


@pytest.mark.parametrize(("fault", "is_printed"), [("BrokenPipeError", False), ("ValueError", True)])
def test_a_process_that_plans_a_stream_ends_quietly_when_spark_closes_its_connection(fault, is_printed):
    """Let an error end a process that looks like the one of Spark, where the same error is a race."""
    command = [sys.executable, "-c", PLANNING.format(fault=fault)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == is_printed


FLUSHING = """
import sys, traceback
from importlib.machinery import ModuleSpec
from wherry.spark.read import quiet_end

sys.modules["__main__"].__spec__ = ModuleSpec(quiet_end.DAEMON, None)
quiet_end.install()
try:
    raise {fault}
except Exception:
    traceback.print_exc()
    assert traceback.format_exc()
"""


@pytest.mark.parametrize(("fault", "is_printed"), [("BrokenPipeError", False), ("ValueError", True)])
def test_a_process_that_plans_a_load_ends_quietly_when_spark_has_closed_its_connection(fault, is_printed):
    command = [sys.executable, "-c", FLUSHING.format(fault=fault)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ("Traceback" in done.stderr) == is_printed


def test_only_a_closed_connection_is_no_error_at_the_end_of_planning():
    printed = []
    hook = hook_of(lambda *given: printed.append(given[1]))
    closed, plain = BrokenPipeError(), BrokenPipeError()
    closed.__context__ = EOFError()
    for fault in (closed, plain, ValueError()):
        hook(type(fault), fault, None)
    assert printed[0] is plain
    assert [type(fault) for fault in printed] == [BrokenPipeError, ValueError]
    before = sys.excepthook
    install()
    assert sys.excepthook is before, "this process plans nothing"


@pytest.mark.parametrize("fault", [BrokenPipeError, ConnectionResetError])
def test_a_closed_connection_is_the_end_of_a_worker(fault):
    def worker(*_):
        raise fault

    with socket.socket() as connection:
        assert quiet(worker)(connection, True) == ENOUGH


def test_another_error_and_another_end_are_as_before():
    def worker(*_):
        raise MemoryError

    with socket.socket() as connection:
        with pytest.raises(MemoryError):
            quiet(worker)(connection, True)
        assert quiet(lambda *_: 0)(connection, True) == 0
