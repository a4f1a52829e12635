"""The data source `wherry`: what Spark asks first. Options are read here; the work is done by who is returned."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from wherry.model.errors import InvalidInput
from wherry.spark.batch import BatchReader, TableReader
from wherry.spark.options import Options, parse
from wherry.spark.redrive import RedriveWriter
from wherry.spark.schema import schema_of
from wherry.spark.sink import BatchWriter, StreamWriter
from wherry.spark.stream import StreamReader


class DefaultSource(DataSource):
    """Topics of Wherry as DataFrames. PySpark finds it by itself through the module `pyspark_wherry`."""

    @classmethod
    def name(cls) -> str:
        return "wherry"

    def schema(self) -> StructType | str:
        return schema_of(self._parsed())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed().made_for("read")
        return BatchReader(options, schema) if options.table == "messages" else TableReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name that Spark calls
        options = self._parsed()
        if options.table != "messages":
            raise InvalidInput("table", options.table, "messages: the other tables are read as a batch")
        return StreamReader(options.made_for("readStream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._writable(overwrite).made_for("write")
        return RedriveWriter(options, schema) if options.table == "dead" else BatchWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = self._writable(overwrite)
        if options.table == "dead":
            raise InvalidInput("table", "dead", "messages: dead letters are sent back by a batch write")
        return StreamWriter(options.made_for("writeStream"), schema)

    def _parsed(self) -> Options:
        return parse(self.options)

    def _writable(self, overwrite: bool) -> Options:
        options = self._parsed()
        if overwrite:
            raise InvalidInput("mode", "overwrite", "append: a log is only added to")
        if options.table not in ("messages", "dead"):
            raise InvalidInput("table", options.table, "messages or dead: the state of queues is read only")
        return options
