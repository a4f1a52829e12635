"""The home of links that a local Spark runs from, so that its Python processes import what pip installed."""

from pathlib import Path

import pyarrow as pa
import pyspark

from wherry.spark.home import linked_home

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


def test_links_to_what_was_installed_before_are_made_again(tmp_path):
    home = linked_home(tmp_path)
    assert home is not None
    (home / "jars").unlink()
    (home / "bin").unlink()
    (home / "bin").symlink_to(tmp_path / "gone")
    assert linked_home(tmp_path) == home
    assert (home / "jars").is_dir()
    assert (home / "bin" / "spark-submit").exists()
    assert list(tmp_path.iterdir()) == [home]


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
