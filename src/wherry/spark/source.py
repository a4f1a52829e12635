"""The data source `wherry`, the class that Spark calls first: reads the options, returns the reader or writer."""

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
from wherry.spark.columns.schema import as_written, remembered, remembering, schema_of
from wherry.spark.options.options import Options, of_table, writable
from wherry.spark.options.parsing import parse
from wherry.spark.read import quiet_end
from wherry.spark.read.batch import BatchReader, TableReader
from wherry.spark.read.stream import StreamReader
from wherry.spark.write.redrive import RedriveWriter
from wherry.spark.write.sink import BatchWriter, StreamWriter

NO_OPTIONS = (
    "a topic. Spark does not hand on the options of a table: make the table without a list of columns, which carry them"
    " then, or say SELECT … FROM table WITH (topic = 'orders'). CREATE TABLE … AS SELECT cannot work: create the table"
    " without AS, then INSERT INTO it"
)


class DefaultSource(DataSource):
    """Topics of Wherry as DataFrames. PySpark finds this class by itself, through the module `pyspark_wherry`."""

    @classmethod
    def name(cls) -> str:
        return "wherry"

    def schema(self) -> StructType | str:
        return remembering(schema_of(self._parsed()), of_table(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed(schema).made_for("read")
        return BatchReader(options, schema) if options.table == "messages" else TableReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name that Spark calls
        options = self._parsed(schema)
        if options.table != "messages":
            raise InvalidInput("table", options.table, "messages: the other tables are read as a batch")
        return StreamReader(options.made_for("readStream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._writable(schema, overwrite).made_for("write")
        if options.table == "dead":
            return RedriveWriter(options, schema)
        return BatchWriter(options, as_written(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = self._writable(schema, overwrite)
        if options.table == "dead":
            raise InvalidInput("table", "dead", "messages: dead letters are sent back by a batch write")
        return StreamWriter(options.made_for("writeStream"), schema)

    def _parsed(self, schema: StructType | None = None, *, is_write: bool = False) -> Options:
        """Return the options of the load or save, together with those of its table."""
        quiet_end.install()
        kept = {} if schema is None else remembered(schema)
        if is_write:
            kept = writable(kept)
        given = {**kept, **self.options}
        if schema is not None and not given:
            raise InvalidInput("options", None, NO_OPTIONS)
        return parse(given, is_write=is_write)

    def _writable(self, schema: StructType, overwrite: bool) -> Options:
        options = self._parsed(schema, is_write=True)
        if overwrite:
            raise InvalidInput(
                "mode",
                "overwrite",
                "append: a log is only added to.",
            )
        if options.table not in ("messages", "dead"):
            raise InvalidInput("table", options.table, "messages or dead: the state of queues is read only")
        return options
