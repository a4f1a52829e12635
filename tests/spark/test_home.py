"""The home of links that a local Spark runs from, so that its Python processes import what pip installed."""

import sys
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyspark

from wherry.spark.sessions.home import home_for, linked_home

INSTALLED = Path(pyspark.__file__).parent


def test_all_of_spark_is_there_but_its_zip_files(tmp_path):
    home = linked_home(tmp_path)
    assert home is not None
    assert (home / "jars").resolve() == (INSTALLED / "jars").resolve()
    assert (home / "bin" / "spark-submit").exists()
    assert (home / "python" / "pyspark").exists()
    assert not (home / "python" / "lib").exists()
    assert linked_home(tmp_path) == home
    assert list(tmp_path.iterdir()) == [home]


def test_links_that_were_removed_are_made_again(tmp_path):
    home = linked_home(tmp_path)
    assert home is not None
    (home / "jars").unlink()
    (home / "bin").unlink()
    assert linked_home(tmp_path) == home
    assert (home / "jars").is_dir()
    assert (home / "bin" / "spark-submit").exists()
    assert list(tmp_path.iterdir()) == [home]


def is_whole(folder):
    home = linked_home(folder)
    return home is not None and (home / "jars").exists() and (home / "bin" / "spark-submit").exists()


def test_a_home_that_was_returned_stays_whole_however_many_ask(tmp_path):
    with get_context("spawn").Pool(4) as pool:
        for number in range(20):
            assert all(pool.map(is_whole, [tmp_path / str(number)] * 8))


def test_only_a_local_session_of_this_python_gets_the_links_and_none_that_names_its_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", "elsewhere")
    assert home_for("local[2]", {}) is None
    monkeypatch.delenv("SPARK_HOME")
    assert home_for("local[2]", {}) == linked_home()
    assert home_for("spark://host:7077", {}) is None
    assert home_for("local[2]", {"spark.pyspark.python": "/usr/bin/python"}) is None
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python")
    assert home_for("local[2]", {}) is None


def test_without_a_place_for_links_spark_runs_from_where_it_is(tmp_path):
    (tmp_path / "file").touch()
    assert linked_home(tmp_path / "file") is None


def test_workers_import_the_installed_package(spark):
    def found(batches):
        import pyspark as imported  # noqa: PLC0415 - in the worker

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [imported.__file__]})

    rows = spark.range(1).mapInArrow(found, "file string").collect()
    assert [Path(row.file) for row in rows] == [INSTALLED / "__init__.py"]
