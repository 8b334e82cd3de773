"""The two files of a window's history, written aside and put in place together once both are whole."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from core_engine.errors import ConfigurationError, StoreUnavailable
from featurestore.definitions import FeatureView
from featurestore.offline.source_schema import arrow_type, where
from featurestore.windows.known_tiles import tile_columns, tile_view
from featurestore.windows.parts import Version
from featurestore.windows.plan import WindowPlan

INSTANT: Final = pa.timestamp("us", tz="UTC")
ROW_GROUP: Final = 100_000

Columns: TypeAlias = Callable[[Sequence[Version]], list[Any]]  # of the view's schema, an array or list each


class HistoryFile:
    """The history of one view, row by row; nobody sees it before it is put in place."""

    def __init__(self, view: FeatureView, tile_us: int, columns: Columns) -> None:
        self._tile_us, self._columns = tile_us, columns
        self._path = Path(view.source.path)
        self._aside = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        source = view.source
        placing = [
            (source.key_column, pa.string()),
            (source.event_time_column, INSTANT),
            (source.created_time_column, INSTANT),
        ]
        self._schema = pa.schema([*placing, *((field.name, arrow_type(field)) for field in view.schema)])
        if self._path.is_dir():
            raise ConfigurationError(f"{where(view)} is a folder; a backfill writes one file: name that")
        self._writer = pq.ParquetWriter(self._aside, self._schema)
        self._keys: list[str] = []
        self._versions: list[Version] = []
        self.num_rows = 0

    def add(self, key: str, versions: Sequence[Version]) -> None:
        self._keys += [key] * len(versions)
        self._versions += versions
        self.num_rows += len(versions)
        if len(self._versions) >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        ends = [version.tile * self._tile_us for version in self._versions]
        known = [version.known_us for version in self._versions]
        columns = [self._keys, ends, known, *self._columns(self._versions)]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._keys, self._versions = [], []

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def put_in_place(self) -> None:
        self._aside.replace(self._path)

    def discard(self) -> None:
        """What was written aside, if it is still there."""
        self._writer.close()
        self._aside.unlink(missing_ok=True)


@contextmanager
def history_files(plan: WindowPlan) -> Iterator[tuple[HistoryFile, HistoryFile]]:
    """Tiles and rows of a windowed view, put in place at the end of the context; after an error nothing has changed.

    Raises:
        ConfigurationError: a path that no file can be written to.
        StoreUnavailable: a disk that takes no more.
    """
    view = plan.view
    with ExitStack() as aside:
        try:
            tiles = HistoryFile(
                tile_view(plan),
                plan.tile_us,
                lambda versions: tile_columns(plan, [version.held for version in versions]),
            )
            aside.callback(tiles.discard)
            rows = HistoryFile(view, plan.tile_us, lambda versions: _row_columns(plan, versions))
            aside.callback(rows.discard)
            yield tiles, rows
            for file in (tiles, rows):
                file.finish()
            for file in (tiles, rows):
                file.put_in_place()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigurationError(f"feature view {view.name}: its history cannot be written: {error}") from None
        except OSError as error:
            raise StoreUnavailable(f"feature view {view.name}: its history cannot be written: {error}") from error


def _row_columns(plan: WindowPlan, versions: Sequence[Version]) -> list[list[Any]]:
    rows = [plan.values(version.held) for version in versions]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in plan.view.schema]
