"""Encode features of users or items as numbers, one row each.

A column of numbers becomes the number and one indicator per quantile bin; a column of words becomes
one indicator per frequent word, where a cell may hold several words separated by `|`. All features
are standardized over the known rows and 0, the average, where nothing is known. The encoder is
saved with a model, for new users; it holds words and means, but no row of any user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from idcf.data.interactions import Doubles, Floats, Mask, Vocab
from idcf.errors import DataError, unknown_name_message
from idcf.files import max_unpacked_bytes

_MAX_WORDS = 64  # words of a column that are encoded, the most frequent
_MIN_ROWS_PER_WORD = 3
_N_QUANTILES = 5  # bins of a column of numbers
_MAX_Z_SCORE = 20.0  # a number further from the mean, in standard deviations, is an error


@dataclass(frozen=True, kw_only=True)
class FeatureColumn:
    """Encoding of one column: of words if `words` is set, otherwise of numbers."""

    name: str  # name of the column
    words: tuple[str, ...] | None = None  # the words that are encoded
    fill_value: float = 0.0  # number used where the value is missing
    bin_edges: tuple[float, ...] = ()  # between the quantile bins; empty for two values or fewer

    @classmethod
    def fit(cls, name: str, values: Sequence[Any]) -> Self:
        """Choose the encoding of a column from its values: numbers if all of them are numeric."""
        try:
            numbers = _parse_feature_numbers(values)
        except (TypeError, ValueError):
            return cls(name=name, words=_frequent_words(values))
        finite = numbers[np.isfinite(numbers)]
        if not len(finite):
            return cls(name=name, words=())  # a column without values has no features
        mean = float(finite.mean())
        numbers = np.where(np.isfinite(numbers), numbers, mean)
        if len(np.unique(numbers)) <= 2:
            return cls(name=name, fill_value=mean)
        edges = np.unique(np.quantile(numbers, np.arange(1, _N_QUANTILES) / _N_QUANTILES))
        return cls(name=name, fill_value=mean, bin_edges=tuple(edges.tolist()))

    @property
    def width(self) -> int:
        """Number of features that the column becomes."""
        if self.words is not None:
            return len(self.words)
        return 2 + len(self.bin_edges) if self.bin_edges else 1

    def transform(self, values: Sequence[Any]) -> Doubles:
        """Encode n values, not standardized: [n, width]. An indicator per word; or the number,
        `fill_value` where it is missing, and one per bin."""
        if self.words is not None:
            cells = [split_words(x) for x in values]
            has_word = [[w in cell for w in self.words] for cell in cells]
            return np.array(has_word, np.float64).reshape(len(cells), len(self.words))
        numbers = _parse_feature_numbers(values)
        numbers = np.where(np.isfinite(numbers), numbers, self.fill_value)
        if not self.bin_edges:
            return numbers[:, None]
        bins = np.searchsorted(self.bin_edges, numbers, side="right")
        return np.column_stack([numbers, bins[:, None] == np.arange(len(self.bin_edges) + 1)])


@dataclass(frozen=True, kw_only=True)
class FeatureEncoder:
    """Encoding of a table of features: its columns, and mean and standard deviation of each."""

    columns: tuple[FeatureColumn, ...]  # in the order of the features
    mean: tuple[float, ...]  # of each feature, before constant ones are dropped
    std: tuple[float, ...]  # 0 for a constant feature, which is dropped

    @classmethod
    def fit(cls, columns: Mapping[str, Sequence[Any]], is_known: Mask) -> Self:
        """Choose words and bins from all rows; features are standardized over the known rows."""
        n_rows = int(is_known.sum())
        _check_size(len(columns), len(columns), n_rows)  # each becomes a feature or more
        encodings = tuple(FeatureColumn.fit(name, values) for name, values in columns.items())
        _check_size(len(columns), sum(x.width for x in encodings), n_rows)
        parts = [x.transform(columns[x.name])[is_known] for x in encodings]
        table = np.hstack(parts) if parts else np.empty((n_rows, 0))
        zeros = np.zeros(table.shape[1])
        mean, std = (table.mean(0), table.std(0)) if len(table) else (zeros, zeros)
        std = np.where(std > 1e-12 * np.abs(mean), std, 0)  # equal values may differ by rounding
        return cls(columns=encodings, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns that are not constant."""
        return [x.name for start, x in self._starts() if any(self.std[start : start + x.width])]

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each column that is not constant, in order; their sum is F."""
        widths = [int(np.sum(np.array(self.std[n : n + x.width]) > 0)) for n, x in self._starts()]
        return tuple(width for width in widths if width)

    def _starts(self) -> Iterator[tuple[int, FeatureColumn]]:
        """Each column with the position of its first feature in `mean` and `std`."""
        start = 0
        for column in self.columns:
            yield start, column
            start += column.width

    def transform(self, columns: Mapping[str, Sequence[Any]]) -> Floats:
        """Encode n rows, standardized: [n, F]. A column that is missing counts as average: 0."""
        std = np.array(self.std)
        n_rows = len(next(iter(columns.values()), ()))
        table = np.zeros((n_rows, len(std)))
        for start, column in self._starts():
            if column.name in columns:
                end = start + column.width
                table[:, start:end] = column.transform(columns[column.name]) - self.mean[start:end]
        features: Floats = (table[:, std > 0] / std[std > 0]).astype(np.float32)
        return features

    def transform_one(self, features: Mapping[str, Any]) -> Floats:
        """Encode the features {name: value} of one new user: [F]; what is missing is average.
        Raises DataError for an unknown name, and for a number that is none or far outside the
        data."""
        if not isinstance(features, Mapping):
            raise DataError(f"features must be a dict {{name: value}}, got {features!r:.80}")
        start_by_name = {column.name: (start, column) for start, column in self._starts()}
        for name, value in features.items():
            if name not in start_by_name:
                raise DataError(unknown_name_message("feature", str(name), self.feature_names))
            start, column = start_by_name[name]
            if column.words is None:
                _check_number(name, value, self.mean[start], self.std[start])
        columns = {name: [value] for name, value in features.items() if split_words(value)}
        n_features = sum(x > 0 for x in self.std)
        return self.transform(columns)[0] if columns else np.zeros(n_features, np.float32)


def fit_feature_encoder(
    vocab: Vocab, ids: Sequence[Hashable], columns: Mapping[str, Sequence[Any]]
) -> tuple[Floats, FeatureEncoder]:
    """Fit an encoder on a table of columns by name, whose rows are those of `ids`. Features are
    standardized over the ids of the vocabulary. Returns the features [len(vocab), F], 0 for ids
    that are not in the table; and the encoder."""
    for name, values in columns.items():
        if len(values) != len(ids):
            raise DataError(f"features: column {name!r} has {len(values)} rows, not {len(ids)}")
    rows = vocab.rows(ids)
    is_known = rows >= 0
    encoder = FeatureEncoder.fit(columns, is_known)
    table = encoder.transform(columns)
    features = np.zeros((len(vocab), table.shape[1]), np.float32)
    features[rows[is_known]] = table[is_known] if len(table) else 0.0
    return features, encoder


def _check_size(n_columns: int, n_features: int, n_rows: int) -> None:
    """Raise DataError if features of some rows, and their products, need too much memory."""
    n_bytes = 8 * n_features * (2 * n_rows + 3 * n_features)
    if n_bytes > max_unpacked_bytes():
        raise DataError(
            f"{n_columns:,} columns become {n_features:,} or more features of {n_rows:,} rows, "
            f"which take about {n_bytes:,} bytes, more than {max_unpacked_bytes():,}; leave out "
            "columns, or raise the limit by the environment variable IDCF_MAX_UNPACKED_BYTES"
        )


def _parse_feature_numbers(values: Sequence[Any]) -> Doubles:
    """Values as float64, NaN where one is missing; raise if one is not a number."""
    return np.array([np.nan if x in (None, "") else float(x) for x in values], np.float64)


def split_words(value: Any) -> set[str]:
    """Words of a cell: text separated by `|`, or a list; empty for a missing value."""
    if value is None or (isinstance(value, float) and value != value):
        return set()
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return {str(x).strip() for x in value} - {""}
    return {w.strip() for w in str(value).split("|")} - {""}


def _frequent_words(values: Sequence[Any]) -> tuple[str, ...]:
    """The words of a column that occur often enough, most frequent first."""
    counts = Counter(word for value in values for word in split_words(value))
    frequent = [word for word in counts if counts[word] >= _MIN_ROWS_PER_WORD]
    return tuple(sorted(frequent, key=lambda word: (-counts[word], word))[:_MAX_WORDS])


def _check_number(name: str, value: Any, mean: float, std: float) -> None:
    """Raise DataError if a feature is not a number or is far outside the training data."""
    try:
        number = mean if value in (None, "") else float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"feature {name!r} is a number, got {value!r:.80}") from None
    if not abs(number - mean) <= _MAX_Z_SCORE * std + 1e-9:
        raise DataError(
            f"feature {name!r} is {value!r:.80}, far outside the training data "
            f"(mean {mean:.3g}, standard deviation {std:.3g})"
        )
