"""What `transformWithState` of Spark needs, checked before a query starts: else Spark fails in its first tasks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from wherry.model.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"

STATEFUL = {_PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
"""The setting of a session that `transformWithState` needs: state in RocksDB, which is among Spark's own files."""


def check_stateful(spark: SparkSession) -> None:
    """Raise `InvalidInput` unless a query of this session may use `transformWithState`.

    Examples
    --------
    >>> check_stateful(session(conf=STATEFUL))  # doctest: +SKIP
    """
    if not _has_protobuf():
        raise InvalidInput("protobuf", None, "installed, for transformWithState: pip install protobuf")
    given = spark.conf.get(_PROVIDER, None)
    if given != STATEFUL[_PROVIDER]:
        allowed = f"{STATEFUL[_PROVIDER]}, for transformWithState: session(conf=wherry.spark.STATEFUL), or [spark]"
        raise InvalidInput(_PROVIDER, given, f"{allowed} of a pipeline")


def _has_protobuf() -> bool:
    try:
        return find_spec("google.protobuf") is not None
    except ModuleNotFoundError:  # there is no `google` at all
        return False
