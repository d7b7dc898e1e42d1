"""The best items of a catalogue, never approximate.

Every item is scored, or its score is bounded by a scan (`idcf.inference.quantized_scan`).
`top_k` and `top_k_1d` select from scores, `mask_scores` and `mask_scores_1d` apply filters to them,
`CatalogRanker` computes them with a frozen model and its kernels. Knows item rows, no item ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.errors import ConfigError
from idcf.inference.kernels import (
    TakeUpSingleUserScorer,
    batch_embedder,
    has_item_table,
    posterior_kernel,
    single_user_scorer,
)
from idcf.inference.quantized_scan import MAX_SCANNED_USERS, QuantizedScan, multiplies_codes
from idcf.models.base import CorrectedTwoTower, Model, TwoTower
from idcf.models.layers.heads import DotHead
from idcf.types import Embeddings, History, Users

EXCLUDED_SCORE = float("-inf")  # the score of an item that must not be recommended
_MAX_SCORES_PER_BLOCK = 1 << 22  # bounds memory, and keeps a block in the processor's cache
_MIN_ROWS_PER_FOLD = 8  # below this, plain topk is faster
_MIN_PRODUCT_USERS = 16  # fewer vectors at a time are multiplied more slowly
_HIDDEN_UNITS_PER_SCORE = 64  # numbers that a neural head stores for each score, about
_MIN_SCANNED_ITEMS = 200_000  # from here on scanning codes is faster than scoring every item


class RankedItems(NamedTuple):
    """The k best items of B users, best first; of equal scores the lower row is first.

    Where fewer than k items may be recommended, the last scores of a row are -inf.
    """

    scores: Tensor  # [B, k]
    item_rows: Tensor  # [B, k]


def top_k(scores: Tensor, k: int) -> RankedItems:
    """Return the k best of scores [B, I], as a stable sort would."""
    k = min(k, scores.shape[1])
    best, rows = _folded_topk(scores, min(k + 1, scores.shape[1]))
    # topk breaks ties in any order: ties among the best are sorted by row, and where the last of
    # the best is tied with an item that was not selected, the whole row is sorted
    is_tie = best[:, 1:] == best[:, :-1]
    if bool(is_tie.any()):
        rows, order = rows.sort(1)
        best, order = best.gather(1, order).sort(dim=1, descending=True, stable=True)
        rows = rows.gather(1, order)
        tied = is_tie[:, k - 1 :].any(1)
        if bool(tied.any()):
            full_sort = scores[tied].sort(dim=1, descending=True, stable=True)
            best[tied, :k], rows[tied, :k] = full_sort.values[:, :k], full_sort.indices[:, :k]
    return RankedItems(best[:, :k], rows[:, :k])


def _folded_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what `scores.topk(k)` does, faster.

    Fold each row into lines of equal width. The k largest scores are in the k columns with the
    largest maxima; finding those takes one pass, and few scores remain to select from.
    """
    n = scores.shape[1]
    width, n_lines = _fold_shape(n, k)
    if n_lines < _MIN_ROWS_PER_FOLD:
        best, rows = scores.topk(k)
        return best, rows
    column_max = scores[:, : n_lines * width].view(-1, n_lines, width).amax(1)
    columns = column_max.topk(k, sorted=False).indices[:, None]
    line_starts = torch.arange(0, n_lines * width, width, device=scores.device)[:, None]
    unfolded = torch.arange(n_lines * width, n, device=scores.device).expand(len(scores), -1)
    candidates = torch.cat([(columns + line_starts).flatten(1), unfolded], 1)
    best, position = scores.gather(1, candidates).topk(k)
    return best, candidates.gather(1, position)


def top_k_1d(scores: Floats, k: int) -> Ints:
    """Return the rows of the k best of scores [I], as `top_k` does; items at -inf are left out."""
    width, n_lines = _fold_shape(len(scores), k)
    # k columns have a maximum of at least the k-th largest maximum, so at least k scores reach it
    maxima = scores
    if n_lines >= _MIN_ROWS_PER_FOLD:
        maxima = scores[: n_lines * width].reshape(n_lines, width).max(0)
    position = len(maxima) - k
    floor = np.partition(maxima, position)[position] if position > 0 else -np.inf
    rows = np.flatnonzero(scores >= floor if floor > -np.inf else scores > floor)
    return rows[np.argsort(-scores[rows], kind="stable")[:k]]


def _fold_shape(n: int, k: int) -> tuple[int, int]:
    """Return width and number of lines of n folded scores; √(nk) columns leave least to sort."""
    width = isqrt(n * k)
    return width, n // width


def mask_scores(
    scores: Tensor, excluded_by_user: History | None = None, candidates: Tensor | None = None
) -> Tensor:
    """Set the scores [B, I] of items that must not be recommended to -inf, in place.

    `excluded_by_user` has the excluded item rows of each user; only `candidates`, if given, may be
    recommended to any user.
    """
    if candidates is not None:
        candidate_scores = scores[:, candidates]
        scores.fill_(EXCLUDED_SCORE)
        scores[:, candidates] = candidate_scores
    if excluded_by_user is not None:
        scores[excluded_by_user.owner(), excluded_by_user.items] = EXCLUDED_SCORE
    return scores


def mask_scores_1d(scores: Floats, excluded: Ints, candidates: Ints | None = None) -> Floats:
    """Set the scores [I] of one user's excluded items to -inf in place, as `mask_scores` does."""
    if candidates is not None:
        candidate_scores = scores[candidates]
        scores.fill(EXCLUDED_SCORE)
        scores[candidates] = candidate_scores
    scores[excluded] = EXCLUDED_SCORE
    return scores


class CatalogRanker:
    """A frozen model with its catalogue embedded once; its weights must not change afterwards."""

    def __init__(self, model: Model) -> None:
        model.freeze()
        self.model = model
        has_towers = isinstance(model, TwoTower)
        self._is_product = isinstance(model, TwoTower) and isinstance(model.head, DotHead)
        is_neural = has_towers and not self._is_product
        self._floats_per_score = _HIDDEN_UNITS_PER_SCORE if is_neural else 1
        with torch.inference_mode():
            self.scan = catalog_scan(model)
            # kernels of single users, and some of batches, hold a copy of all item vectors
            self._batch_embedder = batch_embedder(model, copies_items=self.scan is None)
            self.single_user_scorer = None
            if self.scan is None:
                self.single_user_scorer = single_user_scorer(model, self._batch_embedder)
            self._posterior_kernel = posterior_kernel(model)
        if self.scan is None and has_towers:
            self._catalog  # noqa: B018

    @cached_property
    def _catalog(self) -> tuple[Embeddings, Tensor | None]:
        """The embeddings of all items; for dot products also their vectors with the biases as a
        column [I, D + 1], so that one product gives the scores.

        Where codes are scanned, few requests need them: the first of these computes them.
        """
        model = self._require_two_towers()
        with torch.inference_mode():
            vector, bias = model.embed_catalog()
            if not self._is_product:
                return Embeddings(vector, bias), None
            vectors_with_bias = torch.cat([vector, (bias + model.mean)[:, None]], 1)
        return Embeddings(vectors_with_bias[:, :-1], bias), vectors_with_bias

    @property
    def item_embeddings(self) -> Embeddings | None:
        """The vectors [I, D] and biases [I] of all items; None: the model has none."""
        return self._catalog[0] if isinstance(self.model, TwoTower) else None

    @torch.inference_mode()
    def embed_users(self, users: Users) -> Embeddings:
        """Return the vectors [B, D] and biases [B] of users; ConfigError: the model has none."""
        model = self._require_two_towers()
        users = users.to(model.device)
        return (self._batch_embedder or model).embed_users(users)

    @torch.inference_mode()
    def score_catalog(self, users: Users, buffer: Tensor | None = None) -> Tensor:
        """Return the score of every item for every user: [B, I]; see `score_buffer`."""
        scores, bias = self._score_without_user_bias(users, buffer)
        return scores if bias is None else scores.add_(bias[:, None])

    def _score_without_user_bias(
        self, users: Users | Embeddings, buffer: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return scores [B, I] without the user bias, and the bias [B] if they lack it.

        The bias changes no order, and adding it to every item would cost as much as top-k. The
        caller may write into the scores.
        """
        if isinstance(users, Users) and not isinstance(self.model, TwoTower):
            scorer = self.single_user_scorer
            on_cpu = self.model.device.type == "cpu"
            if isinstance(scorer, TakeUpSingleUserScorer) and scorer.is_sparse and on_cpu:
                return self._score_one_by_one(users, scorer), None
            # the scores may be a tensor of the model: copy them
            return self.model.score_catalog(users.to(self.model.device)).clone(), None
        model = self._require_two_towers()
        vector, bias = self.embed_users(users) if isinstance(users, Users) else users
        items, vectors_with_bias = self._catalog
        if vectors_with_bias is None:
            return model.score_all_pairs(Embeddings(vector, bias), items), None
        vector = F.pad(vector, (0, 1), value=1.0)
        out = None if buffer is None else buffer[: len(vector)]
        scores = torch.mm(vector, vectors_with_bias.T, out=out)
        if isinstance(model, CorrectedTwoTower) and model.corrects_scores():
            assert isinstance(users, Users)
            history = users.history.to(model.device)
            return model.correct_catalog(scores.add_(bias[:, None]), history), None
        return scores, bias

    def _score_one_by_one(self, users: Users, scorer: TakeUpSingleUserScorer) -> Tensor:
        """Return the scores [B, I] by a kernel that reads only items with a relation, which is much
        faster than the model for many users at once."""
        history = users.history
        items, values, ends = (x.numpy() for x in history)
        scores = torch.empty(len(users), self.model.n_items)
        for n, (start, end) in enumerate(pairwise(ends)):
            if start < end:
                scores[n] = torch.from_numpy(scorer(items[start:end], values[start:end]))
            else:
                user = _slice_users(users, slice(n, n + 1))
                scores[n] = self.model.score_catalog(user)[0]
        return scores

    def score_one_user(
        self, item_rows: Ints, values: Floats, features: Floats | None = None
    ) -> Floats:
        """Return the score of every item [I] for one new user, with encoded `features` [F].

        The caller may write into the scores.
        """
        if self.single_user_scorer is not None and len(item_rows) and features is None:
            return self.single_user_scorer(item_rows, values)
        user = _single_user(item_rows, values, features)
        scores: Floats = self.score_catalog(user)[0].float().cpu().numpy()
        return scores.copy()

    def score_items_of_one_user(
        self, item_rows: Ints, values: Floats, features: Floats | None, target_rows: Ints
    ) -> Floats:
        """Return the scores of items [K] for one new user; see `score_one_user`."""
        if self.scan is None:
            return self.score_one_user(item_rows, values, features)[target_rows]
        vector, bias = self.embed_users(_single_user(item_rows, values, features))
        scores = self.scan.scores(vector[0].float().numpy(), target_rows)
        scores += bias.float().numpy()
        return scores

    def rating_std_of_one_user(
        self, item_rows: Ints, values: Floats, features: Floats | None, target_rows: Ints
    ) -> Floats:
        """Return the standard deviations [K] of the ratings of items [K] for one new user."""
        if not len(target_rows):
            return np.empty(0, np.float32)
        scorer = self.single_user_scorer
        if scorer is not None and scorer.rating_std and len(item_rows) and features is None:
            return scorer.rating_std(item_rows, values, target_rows)
        user = _single_user(item_rows, values, features)
        std: Floats = self.rating_std(user, torch.from_numpy(target_rows)[None])[0].cpu().numpy()
        return std

    @torch.inference_mode()
    def rating_std(self, users: Users, item_rows: Tensor) -> Tensor:
        """Return the standard deviations [B, K] of the ratings of items [B, K].

        ConfigError: the model has no `has_uncertainty`.
        """
        if self.model.has_uncertainty and not item_rows.numel():
            return torch.empty(item_rows.shape)
        device, owner = self.model.device, torch.arange(len(users))
        return self.model.predictive_std(users.to(device), item_rows.to(device), owner.to(device))

    @torch.inference_mode()
    def rating_std_with_histories(self, users: Users, item_rows: Tensor) -> Tensor:
        """Return `rating_std` of users who all have a history, by a kernel if there is one."""
        kernel = self._posterior_kernel
        if kernel is None or not item_rows.numel():
            return self.rating_std(users, item_rows)
        return kernel.rating_std(kernel.posterior(users), item_rows)

    @property
    def max_block_users(self) -> int:
        """Number of users whose scores of the whole catalogue are computed at a time."""
        n_users = _MAX_SCORES_PER_BLOCK // (self.model.n_items * self._floats_per_score)
        return max(_MIN_PRODUCT_USERS if self._is_product else 1, n_users)

    def blocks(
        self, users: Users, max_users: int | None = None, *, only_best: bool = False
    ) -> Iterator[tuple[slice, Users]]:
        """Yield blocks of at most `max_block_users` or `max_users` users, and their positions.

        `only_best`: only `top_k_block` is called with them, which may take more users at a time.
        """
        size = self.max_block_users
        if only_best and self.scan is not None:
            size = max(size, MAX_SCANNED_USERS)
        size = min(size, max_users or size)
        for start in range(0, len(users), size):
            rows = slice(start, min(start + size, len(users)))
            yield rows, users if len(users) <= size else _slice_users(users, rows)

    @torch.inference_mode()
    def score_buffer(self, n_users: int) -> Tensor | None:
        """Allocate memory for `top_k_block`: [max_block_users, I], or None if it would not help.

        Allocating anew for every block takes as long as scoring. It does not help if `n_users` fit
        into one block, or if the scores are not a single matrix product.
        """
        is_scored = self._is_product and self.scan is None
        if not is_scored or n_users <= self.max_block_users:
            return None
        vectors = self._catalog[0].vector
        return vectors.new_empty(self.max_block_users, self.model.n_items)

    @torch.inference_mode()
    def top_k_block(
        self,
        users: Users | Embeddings,
        k: int,
        excluded_by_user: History | None = None,
        candidates: Tensor | None = None,
        buffer: Tensor | None = None,
    ) -> RankedItems:
        """Return the k best items of each user of one block, or of their embeddings.

        `mask_scores` explains the filters, `score_buffer` makes the buffer.
        """
        if self.scan is not None:
            vector, user_bias = self.embed_users(users) if isinstance(users, Users) else users
            rows = None if candidates is None else candidates.numpy()
            best, item_rows = self.scan.top_k(vector.float().numpy(), k, excluded_by_user, rows)
            return RankedItems(best.add_(user_bias[:, None]), item_rows)
        scores, bias = self._score_without_user_bias(users, buffer)
        ranked = top_k(mask_scores(scores.float().cpu(), excluded_by_user, candidates), k)
        if bias is not None:
            ranked.scores.add_(bias.float().cpu()[:, None])
        return ranked

    @torch.inference_mode()
    def top_k_block_with_std(
        self,
        users: Users,
        k: int,
        excluded_by_user: History | None = None,
        candidates: Tensor | None = None,
        buffer: Tensor | None = None,
    ) -> tuple[RankedItems, Tensor]:
        """Return what `top_k_block` does for users with histories, and the deviations [B, k]."""
        kernel = self._posterior_kernel
        if kernel is None or self.model.corrects_scores():  # a correction reads the histories
            ranked = self.top_k_block(users, k, excluded_by_user, candidates, buffer)
            return ranked, self.rating_std_with_histories(users, ranked.item_rows)
        posterior = kernel.posterior(users)
        embeddings = kernel.embed_users(users, posterior)
        ranked = self.top_k_block(embeddings, k, excluded_by_user, candidates, buffer)
        return ranked, kernel.rating_std(posterior, ranked.item_rows)

    @torch.inference_mode()
    def top_k(
        self,
        users: Users,
        k: int,
        excluded_by_user: History | None = None,
        candidates: Tensor | None = None,
    ) -> RankedItems:
        """Return the k best items of each user, computed in blocks; see `top_k_block`."""
        buffer = self.score_buffer(len(users))
        parts = []
        for rows, block in self.blocks(users, only_best=True):
            excluded = None if excluded_by_user is None else slice_history(excluded_by_user, rows)
            parts.append(self.top_k_block(block, k, excluded, candidates, buffer))
        if not parts:
            return RankedItems(torch.empty(0, k), torch.empty(0, k, dtype=torch.int64))
        return RankedItems(*(torch.cat(x) for x in zip(*parts, strict=True)))

    @torch.inference_mode()
    def similarities_among(self, item_rows: Ints) -> Floats:
        """Return `item_similarities` of some items [..., K] to one another: [..., K, K]."""
        rows = torch.from_numpy(item_rows).to(self.model.device)
        similarities = self.model.similarities_among(rows)
        if similarities is None and self._has_own_similarities:
            if item_rows.ndim > 1:
                return np.stack([self.similarities_among(x) for x in item_rows])
            by_item = [self.item_similarities(row)[item_rows] for row in item_rows.tolist()]
            return np.stack(by_item)
        if similarities is None:
            vectors = self._unit_vectors[rows]
            similarities = vectors @ vectors.mT
        out: Floats = similarities.float().cpu().numpy()
        return out

    @cached_property
    def _has_own_similarities(self) -> bool:
        """Whether similarities are those of the model, not cosines of its item vectors."""
        return self.model.n_items > 0 and self.model.item_similarities(0) is not None

    @cached_property
    def _unit_vectors(self) -> Tensor:
        """The item vectors [I, D], scaled to length 1."""
        if self.item_embeddings is None:
            raise self._no_similarities()
        return F.normalize(self.item_embeddings.vector)

    def _no_similarities(self) -> ConfigError:
        """Return the error of a model that does not know how similar two items are."""
        return ConfigError(
            f"{type(self.model).__name__} has no similarity between items; use an idcf-* model, "
            "'als', 'ease' or 'item-knn'"
        )

    @torch.inference_mode()
    def item_similarities(self, item_row: int) -> Floats:
        """Return the similarity of every item to one item: [I].

        It is that of the model, such as a weight between items, else the cosine of the vectors.
        """
        similarities = self.model.item_similarities(item_row)
        if similarities is None:
            if self.item_embeddings is None:
                raise self._no_similarities()
            vectors = self.item_embeddings.vector
            similarities = F.cosine_similarity(vectors, vectors[item_row][None])
        out: Floats = similarities.float().cpu().numpy()
        return out

    def _require_two_towers(self) -> TwoTower:
        """Return the model; raise ConfigError if it has no user vectors."""
        if not isinstance(self.model, TwoTower):
            raise ConfigError(
                f"{type(self.model).__name__} scores items without user vectors; to embed users, "
                "fit 'als' or 'idcf-dot' or, on ratings, 'idcf-bayes'"
            )
        return self.model


def catalog_scan(model: Model) -> QuantizedScan | None:
    """Return the codes of a large catalogue whose scores are dot products; None: there are none.

    The scan is for processors that multiply 8-bit integers, and for item vectors that are a table.
    """
    is_large = model.n_items >= _MIN_SCANNED_ITEMS and model.device.type == "cpu"
    if not is_large or not isinstance(model, TwoTower) or not has_item_table(model):
        return None
    if model.corrects_scores():
        return None
    if not multiplies_codes():
        return None

    @torch.inference_mode()
    def embed_items(item_rows: Ints) -> tuple[Floats, Floats]:
        """Return the vectors [K, D] and the biases [K] of items, with the mean."""
        vector, bias = model.embed_items(torch.from_numpy(item_rows))
        return vector.float().numpy(), (bias + model.mean).float().numpy()

    scan = QuantizedScan(model.n_items, embed_items)
    return scan if scan.is_possible else None


def _single_user(item_rows: Ints, values: Floats, features: Floats | None) -> Users:
    """Return one new user as models expect it."""
    offsets = torch.tensor([0, len(item_rows)])
    history = History(torch.from_numpy(item_rows), torch.from_numpy(values), offsets)
    feature_rows = None if features is None else torch.from_numpy(features)[None]
    return Users(torch.tensor([-1]), history, feature_rows)


def _slice_users(users: Users, rows: slice) -> Users:
    """Return consecutive users."""
    features = None if users.features is None else users.features[rows]
    return Users(users.ids[rows], slice_history(users.history, rows), features)


def slice_history(history: History, rows: slice) -> History:
    """Return the histories of consecutive users, as views where possible."""
    offsets = history.offsets[rows.start : rows.stop + 1]
    entries = slice(int(offsets[0]), int(offsets[-1]))
    return History(history.items[entries], history.values[entries], offsets - offsets[0])
