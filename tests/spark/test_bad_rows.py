"""Rows that a pipeline cannot read are dead letters, mended and published once; a million in `make soak-spark`."""

import pytest

from tests.spark.soak import bad_rows


@pytest.mark.rows("A11")
def test_bad_rows_are_reported_mended_and_published_once(spark, broker, tmp_path):
    bad_rows.show(spark, broker, tmp_path, 5_000)
