"""Exact top-k of dot products over a large catalogue: a scan of 8-bit codes, then exact scores.

Item vectors x and a user vector q are written as x = a c + r and q = s u + e with integers |c|, |u|
≤ 127. By Cauchy and Schwarz the score of an item is at most

    q·x + b ≤ a (s u·c + |e| max |c| + |q| max (|r| / a)) + b,

with maxima over all items. Products u·c of integers are exact, and several times as fast as those
in single precision. An item whose bound is below the k-th best of some exact scores is not among
the k best; the others, a few dozen, get their exact score: the dot product in double precision,
rounded to single precision. So the result is that of scoring every item. Columns of the item
vectors are first divided by their largest absolute value, and those of user vectors multiplied by
it, so that no column takes the precision of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.types import History

Float64Array = NDArray[np.float64]
EmbedItems = Callable[[Ints], tuple[Floats, Floats]]  # item rows [K]: vectors [K, D], offsets [K]
Rescore = Callable[[Ints, Floats], Floats]  # item rows [K] and q·x + b [K]: scores [K]

MAX_SCANNED_USERS = 64  # at a time
_MAX_CODE = 127
_GROUP_SIZE = 64  # items that are represented by the largest of their bounds
_MAX_BOUNDS = 1 << 19  # that are computed at a time, so that they stay in the processor's cache
_MAX_BLOCK_ITEMS = 1 << 17
_ROWS_AT_ONCE = 1 << 12  # whose vectors are copied at a time
_MIN_VECTOR_SIZE = 48  # columns; with fewer, two vectors are multiplied faster than one
_MIN_SIZE = 2  # columns; the product of single columns is wrong in PyTorch 2.13
_MAX_SIZE = 1000  # columns; sums of products of more codes are not exact in single precision
_MIN_SCALE = 1e-30  # so that no product with a scale is denormal
_MAX_MAGNITUDE = 1e15  # of numbers; products of larger ones may overflow single precision
_ROUNDING = 2.0**-21  # more than all errors of rounding in a bound and in a score, relative


class Order(NamedTuple):
    """What orders the items instead of q·x + b: `slope` (q·x + b) + `added` [I].

    `rescore` computes it in double precision and rounds it to single precision.
    """

    slope: float  # not negative
    added: Tensor
    rescore: Rescore


class EncodedQueries(NamedTuple):
    """User vectors and their codes. The bound of an item is a (scale · u·c + allowance) + b."""

    vectors: Floats  # [B, D]
    codes: Tensor  # int8 [B, D']: u of the columns that are not zero for all items
    scale: Tensor  # [B, 1]: s
    allowance: Tensor  # [B, 1]
    is_bounded: NDArray[np.bool_]  # [B]: no number is so large that it may overflow

    def user(self, n: int) -> EncodedQueries:
        """Return one of the vectors."""
        return EncodedQueries(*(x[n : n + 1] for x in self))  # type: ignore[arg-type]


@cache
def multiplies_codes() -> bool:
    """Return whether this processor multiplies 8-bit integers exactly, and faster than floats."""
    try:
        if not torch.cpu._is_vnni_supported():
            return False
        codes = (torch.arange(40 * 67).view(40, 67) * 31 % 255 - _MAX_CODE).to(torch.int8)
        codes[::3] = codes[::3].sign() * _MAX_CODE
        expected = codes.long() @ codes.long().T
        products = [torch._int_mm(codes[:n], codes.T).long() for n in (1, 4, 40)]
    except (AttributeError, RuntimeError):
        return False
    return all(torch.equal(x, expected[: len(x)]) for x in products)


class QuantizedScan:
    """Codes of the item vectors of a catalogue. The vectors themselves are those of the model."""

    def __init__(self, n_items: int, embed_items: EmbedItems) -> None:
        """Quantize the vectors that `embed_items` returns for item rows; see `is_possible`."""
        self.n_items, self._embed_items = n_items, embed_items
        parts = [
            slice(x, min(x + _ROWS_AT_ONCE, n_items)) for x in range(0, n_items, _ROWS_AT_ONCE)
        ]
        rows = np.arange(n_items)
        extent = np.max([np.abs(embed_items(rows[x])[0]).max(0) for x in parts], 0)
        self._columns = np.flatnonzero(extent)
        self._unit = extent[self._columns].astype(np.float64)
        self._codes = torch.empty(n_items, max(_MIN_SIZE, len(self._columns)), dtype=torch.int8)
        self._scale, offsets = torch.empty(n_items), torch.empty(n_items)
        self._max_code_norm = self._max_residual = 0.0
        for part in parts:
            vectors, offset = embed_items(rows[part])
            offsets[part] = torch.from_numpy(offset)
            self._quantize(vectors[:, self._columns] / self._unit, part)
        is_constant = bool((offsets == offsets[0]).all())
        self.offsets = offsets[:1].clone() if is_constant else offsets
        self.max_offset = float(offsets.abs().max())
        largest = max(float(extent.max()), self.max_offset)
        self.is_possible = len(self._columns) <= _MAX_SIZE and largest < _MAX_MAGNITUDE

    def _quantize(self, x: Float64Array, part: slice) -> None:
        """Store the codes of some items, and what bounds their residuals."""
        scale = np.maximum(np.abs(x).max(1, initial=0) / _MAX_CODE, _MIN_SCALE).astype(np.float32)
        codes = np.rint(x / scale[:, None]).clip(-_MAX_CODE, _MAX_CODE)
        residual = np.linalg.norm(x - scale[:, None] * codes, axis=1) / scale
        self._max_residual = max(self._max_residual, float(residual.max()))
        self._max_code_norm = max(self._max_code_norm, float(np.linalg.norm(codes, axis=1).max()))
        self._codes[part] = self._pad(codes)
        self._scale[part] = torch.from_numpy(scale)

    def _pad(self, codes: Float64Array) -> Tensor:
        """Return codes as integers, with columns of zeros if there are fewer than two."""
        missing = self._codes.shape[1] - codes.shape[1]
        return F.pad(torch.from_numpy(codes.astype(np.int8)), (0, missing))

    def scores(self, query: Floats, item_rows: Ints) -> Floats:
        """Return the exact scores q·x + b [K] of items [K] for one user vector [D]."""
        out, vector = np.empty(len(item_rows), np.float32), query.astype(np.float64)
        for start in range(0, len(item_rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            vectors, offsets = self._embed_items(item_rows[part])
            products = vectors * vector
            with np.errstate(over="ignore"):
                # NumPy adds up each row alike, however many there are
                out[part] = np.add.reduce(products, 1) + offsets
        return out

    def upper_bounds(self, queries: Floats, item_rows: Ints) -> Float64Array:
        """Return numbers float64 [B, K] that are not below the exact scores of items [K]."""
        encoded = self.encode(queries, 1.0)
        bounds: Float64Array = self.bounds(encoded, torch.from_numpy(item_rows)).double().numpy()
        bounds += self.slack(None)
        bounds[~encoded.is_bounded] = np.inf
        return bounds

    def top_k(
        self,
        queries: Floats,
        k: int,
        excluded_by_user: History | None = None,
        candidates: Ints | None = None,
        order: Order | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return scores and rows [B, k] of the best items for user vectors [B, D], best first.

        Of equal scores the lower row is first. Only `candidates`, if given, may be recommended, and
        no items that are excluded for a user. Where fewer than k are allowed, the last scores of a
        row are -inf. The scores are exact, or those of `order`.
        """
        k, n_users = min(k, self.n_items), len(queries)
        best = torch.full((n_users, k), float("-inf"))
        best_rows = torch.zeros(n_users, k, dtype=torch.int64)
        search = _Search(self, None if candidates is None else np.unique(candidates), order)
        excluded = search.excluded_positions(excluded_by_user, n_users)
        for start in range(0, n_users, MAX_SCANNED_USERS):
            users = range(start, min(start + MAX_SCANNED_USERS, n_users))
            encoded = self.encode(queries[start : users.stop], search.slope)
            maxima = search.group_maxima(encoded, excluded[start : users.stop])
            for n, user in enumerate(users):
                rows, scores = search.best(encoded.user(n), k, maxima[n], excluded[user])
                best[user, : len(rows)] = torch.from_numpy(scores)
                best_rows[user, : len(rows)] = torch.from_numpy(rows)
        return best, best_rows

    def encode(self, queries: Floats, slope: float) -> EncodedQueries:
        """Return user vectors [B, D] as codes; the bounds are those of `slope` times the score."""
        magnitude = np.abs(queries).max(1, initial=0)
        is_bounded = np.isfinite(magnitude) & (magnitude < _MAX_MAGNITUDE)
        q = np.where(is_bounded[:, None], queries, 0)[:, self._columns] * (slope * self._unit)
        scale = np.maximum(np.abs(q).max(1, initial=0) / _MAX_CODE, _MIN_SCALE).astype(np.float32)
        codes = np.rint(q / scale[:, None]).clip(-_MAX_CODE, _MAX_CODE)
        residual = np.linalg.norm(q - scale[:, None] * codes, axis=1)
        allowance = residual * self._max_code_norm + np.linalg.norm(q, axis=1) * self._max_residual
        largest = scale * np.linalg.norm(codes, axis=1) * self._max_code_norm + allowance
        allowance += _ROUNDING * largest
        return EncodedQueries(
            queries,
            self._pad(codes),
            torch.from_numpy(scale[:, None]),
            torch.from_numpy(allowance.astype(np.float32)[:, None]),
            is_bounded,
        )

    def bounds(
        self, queries: EncodedQueries, rows: Tensor | slice, order: Order | None = None
    ) -> Tensor:
        """Return upper bounds [B, K] of the scores of some items, but for `slack`."""
        codes, n_users = queries.codes, len(queries.codes)
        if n_users == 1 and codes.shape[1] < _MIN_VECTOR_SIZE:
            codes = codes.repeat(2, 1)
        bounds = torch._int_mm(codes, _select(self._codes, rows).T)[:n_users].float()
        bounds.mul_(queries.scale).add_(queries.allowance)
        offsets = self.offsets if len(self.offsets) == 1 else _select(self.offsets, rows)
        if order is not None:
            offsets = torch.add(_select(order.added, rows), offsets, alpha=order.slope)
        return torch.addcmul(offsets, bounds, _select(self._scale, rows))

    def slack(self, order: Order | None) -> float:
        """Return what rounding of offsets may add to a score beyond its bound."""
        if order is None:
            return _MIN_SCALE + _ROUNDING * self.max_offset
        added = max(float(x.abs()) for x in order.added.aminmax())
        return _MIN_SCALE + _ROUNDING * (order.slope * self.max_offset + added)


def _select(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    """Return some rows of a tensor; an index in brackets would be several times as slow."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


class _Search:
    """The best of the items that may be recommended, in the order of their rows.

    Positions count these items; they are the rows of the catalogue if there are no candidates.
    """

    def __init__(self, scan: QuantizedScan, candidates: Ints | None, order: Order | None) -> None:
        self.scan, self.candidates, self.order = scan, candidates, order
        self.n = scan.n_items if candidates is None else len(candidates)
        self.slope, self.slack = 1.0 if order is None else order.slope, scan.slack(order)

    def excluded_positions(self, excluded_by_user: History | None, n_users: int) -> list[Ints]:
        """Return the positions of the excluded items of each user."""
        parts = split_rows(excluded_by_user, n_users)
        if self.candidates is None:
            return parts
        rows_and_end = np.append(self.candidates, -1)
        positions = [np.searchsorted(self.candidates, x) for x in parts]
        return [p[rows_and_end[p] == x] for p, x in zip(positions, parts, strict=True)]

    def rows(self, positions: Ints) -> Ints:
        """Return the rows of items at some positions."""
        return positions if self.candidates is None else self.candidates[positions]

    def group_maxima(self, queries: EncodedQueries, excluded: list[Ints]) -> Floats:
        """Return the largest bound [B, G] of each group of `_GROUP_SIZE` items, -inf if none of
        them may be recommended."""
        n_users = len(queries.codes)
        size = min(_MAX_BLOCK_ITEMS, _MAX_BOUNDS // n_users) // _GROUP_SIZE * _GROUP_SIZE
        owner = np.repeat(np.arange(n_users), [len(x) for x in excluded])
        positions = np.concatenate(excluded)
        order = np.argsort(positions, kind="stable")
        owner, positions = owner[order], positions[order]
        # allocated once: small results between large temporary ones would fragment the memory
        maxima = torch.empty(n_users, -(-self.n // _GROUP_SIZE))
        for start in range(0, self.n, size):
            stop = min(start + size, self.n)
            bounds = self.scan.bounds(queries, self._selection(start, stop), self.order)
            first, last = np.searchsorted(positions, (start, stop))
            if first < last:
                cells = torch.from_numpy(owner[first:last] * (stop - start))
                cells += torch.from_numpy(positions[first:last] - start)
                bounds.view(-1).index_fill_(0, cells, -torch.inf)
            if missing := -(stop - start) % _GROUP_SIZE:
                bounds = F.pad(bounds, (0, missing), value=-torch.inf)
            groups = slice(start // _GROUP_SIZE, -(-stop // _GROUP_SIZE))
            maxima[:, groups] = bounds.view(n_users, -1, _GROUP_SIZE).amax(2)
        out: Floats = maxima.numpy()
        return out

    def _selection(self, start: int, stop: int) -> Tensor | slice:
        """Return an index of the rows of consecutive positions."""
        if self.candidates is None:
            return slice(start, stop)
        return torch.from_numpy(self.candidates[start:stop])

    def best(
        self, query: EncodedQueries, k: int, group_maxima: Floats, excluded: Ints
    ) -> tuple[Ints, Floats]:
        """Return the rows and scores of the k best items of one user, best first.

        The k items of highest bounds, in the k groups of highest bounds, have exact scores of at
        least `floor`; so have the k best items.
        """
        groups = _largest(group_maxima, k)
        positions, bounds = self._allowed(query, groups, excluded)
        seeds = positions[_largest(bounds, k)]
        floor = np.float64(-np.inf)
        if len(seeds) == k and query.is_bounded[0]:
            floor = np.float64(self._scores(query, seeds).min()) - self.slack
        is_open = group_maxima >= floor if floor > -np.inf else group_maxima > floor
        positions, bounds = self._allowed(query, np.flatnonzero(is_open), excluded)
        positions = positions[bounds >= floor]
        scores = self._scores(query, positions)
        best = np.argsort(-scores, kind="stable")[:k]
        return self.rows(positions[best]), scores[best]

    def _allowed(self, query: EncodedQueries, groups: Ints, excluded: Ints) -> tuple[Ints, Floats]:
        """Return the positions of items of some groups that may be recommended, in ascending order,
        and their bounds."""
        members = np.sort(groups)[:, None] * _GROUP_SIZE + np.arange(_GROUP_SIZE)
        positions = members.ravel()
        positions = positions[positions < self.n]
        if len(excluded) and len(positions):
            nearest = np.searchsorted(positions, excluded).clip(max=len(positions) - 1)
            positions = np.delete(positions, nearest[positions[nearest] == excluded])
        rows = torch.from_numpy(self.rows(positions))
        return positions, self.scan.bounds(query, rows, self.order)[0].numpy()

    def _scores(self, query: EncodedQueries, positions: Ints) -> Floats:
        """Return the scores that order the items at some positions."""
        rows = self.rows(positions)
        scores = self.scan.scores(query.vectors[0], rows)
        return scores if self.order is None else self.order.rescore(rows, scores)


def split_rows(history: History | None, n_users: int) -> list[Ints]:
    """Return the item rows of each history; without histories, they are empty."""
    if history is None or not n_users:
        return [np.zeros(0, np.int64)] * n_users
    return np.split(history.items.numpy(), history.offsets[1:-1].numpy())


def _largest(values: Floats, k: int) -> Ints:
    """Return the positions of the k largest values that are not -inf, in any order."""
    k = min(k, len(values))
    best: Ints = np.argpartition(values, len(values) - k)[len(values) - k :] if k else np.arange(0)
    return best[values[best] > -np.inf]
