"""The data source ``postroom``: the class behind ``spark.read.format("postroom")``.

It is made once for a data frame, in a process of Spark's, and pickled into those that plan and
read. It has what must be equal in all of them: the options, and the pinned timestamp. (``reader``
is called anew for each plan, and would find another one.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from postroom.errors import Invalid
from postroom.pipeline import connections, sink_rows, tables
from postroom.pipeline.change_stream import change_reader
from postroom.pipeline.driver_service import DriverLink
from postroom.pipeline.options import (
    LOAD,
    SinkOptions,
    StoreAddress,
    is_of_catalog,
    is_sink,
    names_store,
    options_in,
    parse,
    parse_sink,
    plain,
    store_options,
    with_options,
)
from postroom.pipeline.sink_loads import LoadWriter
from postroom.pipeline.sink_staging import BatchWriter, StreamWriter
from postroom.pipeline.table_reader import WHOLE_RANGE, TableReader
from postroom.pipeline.typed_values import encoder
from postroom.pipeline.workarounds import drop_empty_reports, freeze_imports


class PostroomSource(DataSource):
    """The data source: see the module. ``register`` makes a subclass for the session.

    Attributes:
        line: to the driver's service; ``None``: there is none.
    """

    line: ClassVar[DriverLink | None] = None

    def __init__(self, options: Mapping[str, str]) -> None:
        self._prepare_planning()
        self.options = options
        self._is_open = names_store(options)
        if self._is_open:
            self._open()

    def _open_table(self, schema: StructType) -> None:
        """Open the store that a table of Spark's catalog names, if no option names one."""
        if not self._is_open:
            self._is_open = True
            self.options = {**options_in(schema), **plain(self.options)}
            self._open()

    def _open(self) -> None:
        """Check the options, and find out how tasks reach the store."""
        self.is_sink = is_sink(self.options)
        given = store_options(self.options) if self.is_sink else self.options
        self.wanted = wanted = parse(given)
        if wanted.store.path and self.line is None:
            raise Invalid("path= needs the driver on this machine: give connect= instead")
        self.store, self.at = wanted.store, 0  # a writer has no timestamp
        if not self.is_sink:
            self.store, self.at = self._pinned()
        elif self.line is not None:
            self.store = self.line.address(wanted.store)

    def _prepare_planning(self) -> None:
        """Prepare this process for planning."""
        freeze_imports()
        if self.line is None:
            drop_empty_reports()

    def _pinned(self) -> tuple[StoreAddress, int]:
        """Return the store as tasks reach it, and the timestamp of this data frame."""
        wanted = self.wanted
        whole = wanted.table in tables.UNVERSIONED
        if self.line is not None:
            whole = whole and not wanted.at  # otherwise the one who named it holds it
            return self.line.begin(wanted.store, wanted.at, wanted.protect_for, whole=whole)
        if whole and not wanted.at:
            raise Invalid(f"{wanted.table!r} can be read only where register() was called")
        return wanted.store, wanted.at or int(connections.database(wanted.store).now())

    def _first_readable(self) -> int:
        """Return the timestamp after which all that has happened is readable.

        It stays readable for as long as the pin does: all plans find the same one.
        """
        found = connections.database(self.store).partitions(part_bytes=WHOLE_RANGE)
        since = max(each.readable_from for each in found)
        if self.line is not None:
            self.line.begin(self.store, max(since, 1), self.wanted.protect_for, whole=False)
        return since

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "postroom"

    def schema(self) -> StructType:
        """Return all columns of the table, values as bytes."""
        self._open_table(StructType())
        known = tables.schema_of(self.wanted.table)
        if is_of_catalog(self.options):
            return with_options(known, self.options)
        return known

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader that plans and reads a batch."""
        self._prepare_planning()
        self._open_table(schema)
        tables.check(schema, self.wanted.table, self.wanted.format, self.wanted.mode)
        wanted = self.wanted
        if wanted.name:
            raise Invalid("name= is for a stream (spark.readStream): leave it out")
        if wanted.table in tables.SINCE and wanted.since is None:
            wanted = replace(wanted, since=self._first_readable())
        return TableReader(wanted, self.store, self.at, self.line, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader that plans and reads a stream of changes."""
        self._prepare_planning()
        self._open_table(schema)
        if self.wanted.table != "changes":
            raise Invalid(
                f"a stream is read from the table changes, not {self.wanted.table!r}: give "
                "table=changes"
            )
        tables.check(schema, "changes", self.wanted.format, self.wanted.mode)
        return change_reader(self.wanted, self.store, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a data frame."""
        options = self._sink(schema, overwrite=overwrite)
        if options.mode == LOAD:
            return LoadWriter(self.store, options)
        return BatchWriter(self.store, options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's signature
        """Return the writer of the batches of a stream."""
        options = self._sink(schema, overwrite=overwrite)
        if options.mode == LOAD:
            raise Invalid("mode=load is for a data frame that does not stream: give mode=put")
        if options.query:
            raise Invalid(
                "query= and batch= are for df.write, as in foreachBatch: a stream has an id and "
                "numbers of its own; leave them out"
            )
        return StreamWriter(self.store, options)

    def _sink(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        """Return the options of a sink, which fit the rows."""
        self._prepare_planning()
        self._open_table(schema)
        if overwrite:
            raise Invalid(
                "a store is added to, and not overwritten as a whole; nothing was written: say "
                'mode("append") (batch) or outputMode("append") (stream), and delete what should '
                "go with rows of mode=delete"
            )
        options = parse_sink(self.options, schema.fieldNames())
        sink_rows.check({field.name: field.dataType.typeName() for field in schema}, options)
        for field in schema:
            if sink_rows.is_field(field.name, options):
                encoder(field.name, tables.arrow_type(field), options.format)
        return options
