"""Where samples come from: the protocol that callers implement, and readers of what they often have."""

from __future__ import annotations

import abc
import itertools
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import open_file

Feed = Mapping[str, Any]


class CalibrationDataReader(metaclass=abc.ABCMeta):
    """Gives samples one after the other; any class with a method `get_next` counts as one.

    `__len__` and `set_range` are for those who can: the first gives the progress a total, the second lets a run take
    samples by pieces.
    """

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        found = callable(getattr(subclass, "get_next", None))
        return True if found else NotImplemented

    @abc.abstractmethod
    def get_next(self) -> Feed | None:
        """The next sample, arrays by the names of the model's inputs; None after the last one."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Feed]:
        return self

    def __next__(self) -> Feed:
        sample = self.get_next()
        if sample is None:
            raise StopIteration
        return sample

    def __len__(self) -> int:
        """How many samples there are."""
        raise NotImplementedError

    def set_range(self, start_index: int, end_index: int) -> None:
        """Let `get_next` give the samples from `start_index` up to and without `end_index`."""
        raise NotImplementedError


class _Samples(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class IndexedReader(CalibrationDataReader):
    """Samples that can be asked for by their numbers: `get_next`, `set_range`, `rewind` and a length."""

    def __init__(self, count: int, sample: Callable[[int], Feed]) -> None:
        self._count, self._sample = count, sample
        self._next, self._end = 0, count

    def __len__(self) -> int:
        return self._count

    def get_next(self) -> Feed | None:
        if self._next >= self._end:
            return None
        self._next += 1
        return self._sample(self._next - 1)

    def set_range(self, start_index: int, end_index: int) -> None:
        if not 0 <= start_index <= end_index:
            raise InvalidQuantization(f"There are no samples {start_index} to {end_index}: give 0 <= start <= end")
        self._next, self._end = start_index, min(end_index, self._count)

    def rewind(self) -> None:
        """Begin again at the first sample."""
        self._next, self._end = 0, self._count


class NpzFolderReader(IndexedReader):
    """The ``.npz`` files of a folder in the order of their names, each one sample: arrays by the names of inputs.

    `limit` is the most samples to take. `errors.InvalidArgument` for a folder without such files.
    """

    def __init__(self, folder: str | Path, limit: int | None = None) -> None:
        if not Path(folder).is_dir():
            raise InvalidQuantization(f"{folder} is no folder: name one that holds .npz files")
        self.files = sorted(Path(folder).glob("*.npz"))[:limit]
        if not self.files:
            raise InvalidQuantization(
                f"{folder} holds no .npz files: write each sample with numpy.savez(file, **inputs_by_name)"
            )
        super().__init__(len(self.files), self._load)

    def _load(self, index: int) -> Feed:
        try:
            with open_file(self.files[index]) as file, np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidQuantization(f"{self.files[index]} is no file of arrays ({error}): write it again") from error


class IterableReader(CalibrationDataReader):
    """The samples of an iterator, a generator or a list: dictionaries of arrays, or what `transform` makes such of.

    A list can be read again by another reader, an iterator once. `limit` is the most samples to take.
    """

    def __init__(
        self, samples: Iterable[Any], transform: Callable[[Any], Feed] | None = None, limit: int | None = None
    ) -> None:
        self._samples = samples
        self._limit = limit
        self._transform = transform
        self._iterator = itertools.islice(iter(samples), limit)

    def __len__(self) -> int:
        count = len(self._samples)  # type: ignore[arg-type]
        return count if self._limit is None else min(count, self._limit)

    def get_next(self) -> Feed | None:
        sample = next(self._iterator, None)
        if sample is None or self._transform is None:
            return sample
        return self._transform(sample)


class DatasetReader(IndexedReader):
    """Rows of a data set of Hugging Face `datasets`, `batch_size` of them stacked into a sample.

    `columns` says which columns are inputs: names, or a mapping from columns to the names of inputs; by default all
    columns. `transform` makes the values of a row (a dictionary) into those of inputs first. The rows of a last,
    smaller batch make a sample of their own. `limit` is the most samples to take.

    A text names a data set instead, which `datasets` loads (``pip install sardonyx[datasets]``): its split is `split`.
    """

    def __init__(
        self,
        dataset: Any,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        batch_size: int = 1,
        transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        limit: int | None = None,
        split: str = "train",
    ) -> None:
        if batch_size < 1:
            raise InvalidQuantization(f"batch_size is {batch_size}: a sample has at least one row")
        self.dataset: _Samples = _load_dataset(dataset, split) if isinstance(dataset, str) else dataset
        self._names = _input_names(columns)
        self._batch_size = batch_size
        self._transform = transform
        count = -(-len(self.dataset) // batch_size)
        super().__init__(count if limit is None else min(count, limit), self._batch)

    def _batch(self, index: int) -> Feed:
        first = index * self._batch_size
        rows = [self._row(row) for row in range(first, min(first + self._batch_size, len(self.dataset)))]
        try:
            return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
        except (KeyError, ValueError) as error:
            raise InvalidQuantization(
                f"The rows {first} to {first + len(rows) - 1} of the data set cannot be stacked ({error}): pad them to "
                "one length, or take batch_size 1"
            ) from error

    def _row(self, index: int) -> Mapping[str, Any]:
        row: Any = dict(self.dataset[index])
        if self._transform is not None:
            row = self._transform(row)
        if self._names is None:
            return dict(row)
        missing = [column for column in self._names if column not in row]
        if missing:
            raise InvalidQuantization(
                f"Row {index} of the data set has no {', '.join(missing)}: it has {', '.join(map(str, row))}"
            )
        return {name: row[column] for column, name in self._names.items()}


def _input_names(columns: Sequence[str] | Mapping[str, str] | None) -> Mapping[str, str] | None:
    if columns is None or isinstance(columns, Mapping):
        return columns
    return {column: column for column in columns}


def _load_dataset(name: str, split: str) -> Any:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise InvalidQuantization(
            f"The data set {name} needs the package datasets: pip install sardonyx[datasets], or pass rows as a list"
        ) from error
    return load_dataset(name, split=split)


def as_reader(source: Any) -> Any:
    """A reader of `source`: itself where it has `get_next`, else the samples that it iterates over.

    `errors.InvalidArgument` for something that gives no samples.
    """
    if callable(getattr(source, "get_next", None)):
        return source
    if isinstance(source, Iterable) and not isinstance(source, Mapping | str | bytes):
        return IterableReader(source)
    raise InvalidQuantization(
        f"Samples come from a CalibrationDataReader, an object with get_next(), or an iterable of dictionaries, not "
        f"from {type(source).__name__}"
    )


def samples_of(reader: Any) -> Iterator[Feed]:
    """The samples of a reader up to the first that is None or empty; `errors.InvalidArgument` for one that is no
    dictionary."""
    for index in itertools.count():
        sample = reader.get_next()
        if sample is None or (isinstance(sample, Mapping) and not sample):
            return
        if not isinstance(sample, Mapping):
            raise InvalidQuantization(
                f"Calibration sample {index} is a {type(sample).__name__}: get_next() must give a dictionary of arrays "
                "by the names of the model's inputs, or None at the end"
            )
        yield sample


def length_of(reader: Any) -> int | None:
    """How many samples a reader says it has; None where it does not know."""
    try:
        return len(reader)
    except (NotImplementedError, TypeError):
        return None
