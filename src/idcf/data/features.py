"""Encode features of users or items as numbers, one row each.

A column of numbers becomes the number and one indicator per quantile bin; a column of words becomes
one indicator per frequent word, where a cell may hold several words separated by `|`. All features
are standardized over the known rows and 0, the average, where nothing is known.
`FeatureEncoder` is saved with a model, to encode the features of new users; it holds words and
means, but no row of any user. Does not know files or datasets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from idcf.data.interactions import Doubles, Floats, Mask, Vocab
from idcf.errors import DataError, unknown_name_message

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
        """Encode n values, without standardizing them: [n, width].

        A column of words becomes an indicator per word of `words`, all 0 where a value is missing
        or holds other words. A column of numbers becomes the number, `fill_value` where it is
        missing, and an indicator per bin if there are `bin_edges`.
        """
        if self.words is not None:
            cells = [_split_words(x) for x in values]
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
        """Fit an encoder.

        Parameters
        ----------
        columns
            Values of each column by name; words and bins are chosen from all rows.
        is_known
            Rows over which features are standardized.
        """
        encodings = tuple(FeatureColumn.fit(name, values) for name, values in columns.items())
        parts = [x.transform(columns[x.name])[is_known] for x in encodings]
        table = np.hstack(parts) if parts else np.empty((int(is_known.sum()), 0))
        zeros = np.zeros(table.shape[1])
        mean, std = (table.mean(0), table.std(0)) if len(table) else (zeros, zeros)
        return cls(columns=encodings, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns that are not constant."""
        ends = np.cumsum([x.width for x in self.columns]).tolist()
        return [
            column.name
            for column, end in zip(self.columns, ends, strict=True)
            if any(self.std[end - column.width : end])
        ]

    def _numeric_stats(self) -> Iterator[tuple[float, float] | None]:
        """Mean and standard deviation of each column of numbers, None for a column of words."""
        start = 0
        for column in self.columns:
            yield None if column.words is not None else (self.mean[start], self.std[start])
            start += column.width

    def transform(self, columns: Mapping[str, Sequence[Any]]) -> Floats:
        """Encode n rows, standardized: [n, F]. A column that is missing counts as average: 0."""
        std, mean = np.array(self.std), np.array(self.mean)
        n_rows = len(next(iter(columns.values()), ()))
        start, parts = 0, []
        for column in self.columns:
            end = start + column.width
            if column.name in columns:
                parts.append(column.transform(columns[column.name]) - mean[start:end])
            else:
                parts.append(np.zeros((n_rows, column.width)))
            start = end
        table = np.hstack(parts) if parts else np.empty((n_rows, 0))
        features: Floats = (table[:, std > 0] / std[std > 0]).astype(np.float32)
        return features

    def transform_one(self, features: Mapping[str, Any]) -> Floats:
        """Encode the features of one new user.

        Parameters
        ----------
        features
            Values by column name. A column that is missing or empty counts as average.

        Returns
        -------
        Features [F].

        Raises
        ------
        DataError
            If a name is unknown, or a number is not one or is far outside the training data.
        """
        if not isinstance(features, Mapping):
            raise DataError(f"features must be a dict {{name: value}}, got {features!r:.80}")
        names = (x.name for x in self.columns)
        stats_by_name = dict(zip(names, self._numeric_stats(), strict=True))
        for name, value in features.items():
            if name not in stats_by_name:
                raise DataError(unknown_name_message("feature", str(name), self.feature_names))
            if (stats := stats_by_name[name]) is not None:
                _check_number(name, value, *stats)
        columns = {name: [value] for name, value in features.items() if _split_words(value)}
        n_features = sum(x > 0 for x in self.std)
        return self.transform(columns)[0] if columns else np.zeros(n_features, np.float32)


def fit_feature_encoder(
    vocab: Vocab, ids: Sequence[Hashable], columns: Mapping[str, Sequence[Any]]
) -> tuple[Floats, FeatureEncoder]:
    """Fit an encoder on a table of features and encode it for a vocabulary.

    Parameters
    ----------
    vocab
        Users or items of the interactions.
    ids
        Id of each row of the table. Features are standardized over the ids of the vocabulary.
    columns
        Values of each column by name, in the order of `ids`.

    Returns
    -------
    Features [len(vocab), F], 0 for ids that are not in the table; and the encoder.

    Raises
    ------
    DataError
        If a column has another length than `ids`.
    """
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


def _parse_feature_numbers(values: Sequence[Any]) -> Doubles:
    """Values as float64, NaN where one is missing; raise if one is not a number."""
    return np.array([np.nan if x in (None, "") else float(x) for x in values], np.float64)


def _split_words(value: Any) -> set[str]:
    """Words of a cell: text separated by `|`, or a list; empty for a missing value."""
    if value is None or (isinstance(value, float) and value != value):
        return set()
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return {str(x).strip() for x in value} - {""}
    return {w.strip() for w in str(value).split("|")} - {""}


def _frequent_words(values: Sequence[Any]) -> tuple[str, ...]:
    """The words of a column that occur often enough, most frequent first."""
    counts: dict[str, int] = {}
    for value in values:
        for word in _split_words(value):
            counts[word] = counts.get(word, 0) + 1
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
