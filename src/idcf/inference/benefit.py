"""The order of a list by expected benefit: is an item taken up, and how good is it then?

    log benefit = (1 - q) (log(P + a q P̄) - (c q + d) log s) + q z
    z = (expected rating - mean) / std of the ratings

P is the probability of the take-up model, P̄ its mean over the items for an empty history, the
rating that of the rating model, s the popularity of the item. The *quality* q is 0 for what the
user will most likely take up, 1 for the highest expected ratings. In between, differences of P
among items that are less likely than most say little, and the rating decides; and popularity counts
less, since users took popular items up also because they knew of them. The damping d
(`idcf.inference.reranking`) is 0 unless asked for.

What a user disliked says little about what they will take up. In the history of the take-up model a
rating counts 1 from the middle of the scale (or the mean rating, if that is lower) on, and less
below, down to 0 for the lowest rating. On a scale of one value every rating counts 1.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from idcf.data.history_reader import history_from_item_rows
from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels import TakeUpSingleUserScorer
from idcf.inference.manifest import DomainInfo
from idcf.inference.quantized_scan import Order, QuantizedScan, split_rows
from idcf.inference.reranking import MIN_SCORE, check_share, log_popularity
from idcf.inference.topk import (
    EXCLUDED_SCORE,
    CatalogRanker,
    RankedItems,
    mask_scores,
    top_k,
)
from idcf.models.base import Model
from idcf.types import Embeddings, History, Users

DEFAULT_QUALITY = 0.4
# chosen on held-out key users: `experiments/search/list-order.jsonl` and `list-floor.jsonl`
_POPULARITY_POWER = 0.5  # c
_FLOOR = 2.5  # a: at the default quality, P̄ is added to P
_Option = tuple[int, float, float]  # length of the history that the take-up model reads, q, c q + d
_MAX_KEPT_CELLS = 1 << 24  # log benefits without any relation that are kept


class BenefitParts(NamedTuple):
    """The benefit of every item for one user [I], and the two numbers that it is made of."""

    benefit: Floats
    probability: Floats
    rating: Floats


class BenefitRanker:
    """Scores and ranks the catalogue by expected benefit, with two frozen models."""

    def __init__(self, ratings: CatalogRanker, take_up_model: Model, domain: DomainInfo) -> None:
        self.ratings, self.take_up = ratings, CatalogRanker(take_up_model)
        n_users = take_up_model.item_popularity()
        self.log_popularity = None if n_users is None else log_popularity(n_users)
        no_items, no_values = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self.mean_probability = float(self.take_up.score_one_user(no_items, no_values).mean())
        # equal ratings have no deviation, and say nothing
        self.rating_mean, self.rating_scale = domain.mean, 1 / domain.std if domain.std else 0.0
        lowest, highest = domain.levels[0], domain.levels[-1]
        middle = min((lowest + highest) / 2, domain.mean)
        # weight of a rating in the history of the take-up model: `slope` · rating + `intercept`
        self.slope = 1 / (middle - lowest) if middle > lowest else 0.0
        self.intercept = -lowest * self.slope if self.slope else 1.0
        scorer = self.take_up.single_user_scorer
        self._sparse: _SparseBenefit | None = None
        if isinstance(scorer, TakeUpSingleUserScorer) and scorer.is_sparse:
            self._sparse = _SparseBenefit(self, scorer)
        self._scan: _BenefitScan | None = None
        if self._sparse is not None and ratings.scan is not None:
            self._scan = _BenefitScan(self._sparse, ratings.scan)

    @property
    def can_scan(self) -> bool:
        """Whether `top_k_block` scans the codes of a large catalogue."""
        return self._scan is not None

    def score_one_user(
        self,
        item_rows: Ints,
        values: Floats,
        features: Floats | None,
        quality: float,
        damping: float = 0.0,
        recency_weights: Floats | None = None,
    ) -> BenefitParts:
        """Return the benefit of every item for one new user; see `idcf.inference.recency`."""
        rating = self.ratings.score_one_user(item_rows, values, features)
        weights = (values * self.slope + self.intercept).clip(0, 1)
        if recency_weights is not None:
            weights *= recency_weights
        counts = weights > 0
        probability = self.take_up.score_one_user(item_rows[counts], weights[counts])
        floor = _FLOOR * quality * self.mean_probability
        log_benefit = np.log(np.maximum(probability + floor, MIN_SCORE))
        damping += _POPULARITY_POWER * quality
        if damping and self.log_popularity is not None:
            log_benefit -= damping * self.log_popularity
        log_benefit *= 1 - quality
        log_benefit += (quality * self.rating_scale) * (rating - self.rating_mean)
        return BenefitParts(np.exp(log_benefit), probability, rating)

    @torch.inference_mode()
    def score_catalog(
        self,
        users: Users,
        quality: Tensor,
        damping: Tensor | None = None,
        recency_weights: Tensor | None = None,
        buffer: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log benefit, probability and rating of every item for every user: [B, I] each.

        `quality` and `damping` are [B], the weights of history entries [N]; None: a damping of 0,
        and weights of 1. `CatalogRanker.score_buffer` of the ratings makes the buffer.
        """
        rating = self.ratings.score_catalog(users, buffer).float().cpu()
        readers = self._weigh_history(users, recency_weights)
        probability = self.take_up.score_catalog(readers).float().cpu()
        log_s = None if self.log_popularity is None else torch.from_numpy(self.log_popularity)
        total_damping = _POPULARITY_POWER * quality + (0.0 if damping is None else damping)
        log_benefit = self._log_benefit(
            probability, rating, quality[:, None], total_damping[:, None], log_s
        )
        return log_benefit, probability, rating

    def _log_benefit(
        self,
        probability: Tensor,
        rating: Tensor,
        quality: Tensor | float,
        damping: Tensor | float,
        log_popularity: Tensor | None,
    ) -> Tensor:
        """Return the log benefit, with c q + d as the damping."""
        slope = torch.as_tensor(quality * self.rating_scale)
        out = probability.add(_FLOOR * quality * self.mean_probability)
        out.clamp_(min=MIN_SCORE).log_()  # in place: these are the largest arrays of a batch
        if log_popularity is not None:
            out.addcmul_(torch.as_tensor(damping), log_popularity, value=-1)
        out *= 1 - quality
        return out.addcmul_(slope, rating).sub_(slope * self.rating_mean)

    @torch.inference_mode()
    def score_item(
        self,
        users: Users,
        item_row: int,
        quality: float,
        damping: float,
        recency_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the benefit of one item for every user [B], without scoring the other items."""
        items, owner = torch.full((len(users), 1), item_row), torch.arange(len(users))
        scores = []
        for model, readers in (
            (self.ratings.model, users),
            (self.take_up.model, self._weigh_history(users, recency_weights)),
        ):
            device = model.device
            column = model(readers.to(device), items.to(device), owner.to(device))[:, 0]
            scores.append(column.float().cpu())
        log_s = None
        if self.log_popularity is not None:
            log_s = torch.tensor(float(self.log_popularity[item_row]))
        total_damping = _POPULARITY_POWER * quality + damping
        return self._log_benefit(scores[1], scores[0], quality, total_damping, log_s).exp()

    def _weigh_history(self, users: Users, recency_weights: Tensor | None) -> Users:
        """Return users with the histories that the take-up model reads, without entries of 0."""
        history = users.history
        weights = (history.values * self.slope + self.intercept).clamp(0, 1)
        if recency_weights is not None:
            weights *= recency_weights.to(weights.device)
        counts = weights > 0
        lengths = torch.zeros(len(users), dtype=torch.int64, device=weights.device)
        lengths.index_add_(0, history.owner(), counts.long())
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return Users(users.ids, History(history.items[counts], weights[counts], offsets))

    def score_buffer(self, n_users: int) -> Tensor | None:
        """Allocate memory for `top_k_block`, or return None if that would not help."""
        buffer = self.ratings.score_buffer(n_users)
        return None if buffer is None else buffer.new_empty(2, *buffer.shape)

    @torch.inference_mode()
    def top_k_block(
        self,
        users: Users,
        quality: Tensor,
        k: int,
        excluded_by_user: History | None,
        candidates: Tensor | None,
        damping: Tensor | None = None,
        recency_weights: Tensor | None = None,
        buffer: Tensor | None = None,
    ) -> tuple[RankedItems, Tensor, Tensor]:
        """Return the k best items of each user of one block, with probabilities and ratings.

        `score_buffer` makes the buffer.
        """
        if self._scan is not None:
            readers = self._weigh_history(users, recency_weights)
            total_damping = _POPULARITY_POWER * quality + (0.0 if damping is None else damping)
            options = quality.tolist(), total_damping.tolist()
            embeddings = self.ratings.embed_users(users)
            return self._scan.top_k(embeddings, readers, options, k, excluded_by_user, candidates)
        rating_buffer, benefit_buffer = (None, None) if buffer is None else buffer
        if benefit_buffer is not None and benefit_buffer.is_cuda:
            benefit_buffer = None  # benefits are computed on the CPU
        if self._sparse is None:
            log_benefit, probability, rating = self.score_catalog(
                users, quality, damping, recency_weights, rating_buffer
            )
        else:
            rating = self.ratings.score_catalog(users, rating_buffer).float().cpu()
            readers = self._weigh_history(users, recency_weights)
            log_benefit, related = self._sparse.score(
                readers, rating, quality, damping, benefit_buffer
            )
        ranked = top_k(mask_scores(log_benefit, excluded_by_user, candidates), k)
        rows = ranked.item_rows
        # the exponential of -inf would be 0, and an excluded item would look like any other
        is_excluded = ranked.scores == EXCLUDED_SCORE
        ranked = RankedItems(ranked.scores.exp().masked_fill_(is_excluded, EXCLUDED_SCORE), rows)
        if self._sparse is None:
            return ranked, probability.gather(1, rows), rating.gather(1, rows)
        return ranked, self._sparse.probability(readers, related, rows), rating.gather(1, rows)


class _SparseBenefit:
    """`BenefitRanker.score_catalog` where most items have no relation to a history.

    Their log benefit is that of their probability without any relation, which depends on the length
    of the history alone, plus a multiple of the rating: one pass over the catalogue for each user.
    """

    def __init__(self, ranker: BenefitRanker, scorer: TakeUpSingleUserScorer) -> None:
        self.ranker, self.scorer = ranker, scorer
        no_items, no_values = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self.empty_probability = ranker.take_up.score_one_user(no_items, no_values)
        self._unrelated: OrderedDict[tuple[int, float, float], Tensor] = OrderedDict()
        self._max_unrelated = max(1, _MAX_KEPT_CELLS // scorer.n_items)

    def score(
        self,
        readers: Users,
        rating: Tensor,
        quality: Tensor,
        damping: Tensor | None,
        buffer: Tensor | None,
    ) -> tuple[Tensor, list[tuple[Ints, Floats]]]:
        """Return the log benefit [B, I] for ratings [B, I], and the related items of each user with
        their probabilities. `readers` have the histories that the take-up model reads."""
        ranker, related = self.ranker, self.related(readers)
        log_benefit = torch.empty_like(rating) if buffer is None else buffer[: len(rating)]
        lengths = readers.history.lengths().tolist()
        total_damping = _POPULARITY_POWER * quality + (0.0 if damping is None else damping)
        for n, (q, d) in enumerate(zip(quality.tolist(), total_damping.tolist(), strict=True)):
            out, (rows, probability) = log_benefit[n], related[n]
            slope = q * ranker.rating_scale
            torch.add(self.unrelated_benefit(lengths[n], q, d), rating[n], alpha=slope, out=out)
            if len(rows):
                out[rows] = ranker._log_benefit(
                    torch.from_numpy(probability), rating[n][rows], q, d, self._log_s(rows)
                )
        return log_benefit, related

    def related(self, readers: Users) -> list[tuple[Ints, Floats]]:
        """Return the items that are related to the history of each user, in ascending order, and
        their probabilities."""
        items, values, ends = (x.cpu().numpy() for x in readers.history)
        nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return [
            self.scorer.related_probability(items[start:end], values[start:end])
            if start < end
            else nothing
            for start, end in pairwise(ends)
        ]

    def related_benefit(self, rows: Ints, probability: Floats, q: float, damping: float) -> Floats:
        """Return the log benefit of related items for a rating of 0."""
        out: Floats = self.ranker._log_benefit(
            torch.from_numpy(probability), torch.zeros(()), q, damping, self._log_s(rows)
        ).numpy()
        return out

    def probability(
        self, readers: Users, related: list[tuple[Ints, Floats]], item_rows: Tensor
    ) -> Tensor:
        """Return the probabilities of some items [B, K], with the related items of `score`."""
        lengths, chosen = readers.history.lengths().tolist(), item_rows.numpy()
        out = np.empty(chosen.shape, np.float32)
        for n, (rows, probability) in enumerate(related):
            out[n] = self._unrelated_probability(lengths[n])[chosen[n]]
            position = np.searchsorted(rows, chosen[n])
            is_related = position < len(rows)
            is_related[is_related] = rows[position[is_related]] == chosen[n][is_related]
            out[n][is_related] = probability[position[is_related]]
        return torch.from_numpy(out)

    def _unrelated_probability(self, length: int) -> Floats:
        """Return P of every item [I] without a relation to a history of some length."""
        return self.scorer.unrelated_probability(length) if length else self.empty_probability

    def unrelated_benefit(self, length: int, quality: float, damping: float) -> Tensor:
        """Return the log benefit of every item [I] without a relation, for a rating of 0."""
        key = (length, quality, damping)
        if key not in self._unrelated:
            probability = torch.from_numpy(self._unrelated_probability(length))
            self._unrelated[key] = self.ranker._log_benefit(
                probability, torch.zeros(()), quality, damping, self._log_s(slice(None))
            )
            if len(self._unrelated) > self._max_unrelated:
                self._unrelated.popitem(last=False)
        self._unrelated.move_to_end(key)
        return self._unrelated[key]

    def _log_s(self, rows: Ints | slice) -> Tensor | None:
        """Return the logarithms of the popularity of some items."""
        log_s = self.ranker.log_popularity
        return None if log_s is None else torch.from_numpy(log_s[rows])


class _BenefitScan:
    """The best items by log benefit, from a scan of the codes of the ratings.

    The log benefit of an unrelated item is a constant of the item plus a multiple of its rating.
    Users with equal constants are scanned together. Related items are few: all are scored.
    """

    def __init__(self, sparse: _SparseBenefit, scan: QuantizedScan) -> None:
        self.sparse, self.scan = sparse, scan

    def top_k(
        self,
        embeddings: Embeddings,
        readers: Users,
        options: tuple[list[float], list[float]],
        k: int,
        excluded_by_user: History | None,
        candidates: Tensor | None,
    ) -> tuple[RankedItems, Tensor, Tensor]:
        """Return what `BenefitRanker.top_k_block` does for the embeddings that ratings have.

        `options` are q and c q + d of the users.
        """
        vectors, bias = embeddings.vector.float().numpy(), embeddings.bias.float().numpy()
        allowed = None if candidates is None else candidates.numpy()
        related, excluded = self.sparse.related(readers), split_rows(excluded_by_user, len(vectors))
        shape = len(vectors), min(k, self.scan.n_items)
        benefit, rating = np.full(shape, EXCLUDED_SCORE, np.float32), np.zeros(shape, np.float32)
        item_rows = np.zeros(shape, np.int64)
        users_of: dict[_Option, list[int]] = {}
        for n, option in enumerate(zip(readers.history.lengths().tolist(), *options, strict=True)):
            users_of.setdefault(option, []).append(n)
        for option, users in users_of.items():
            order = self._order(*option)
            others = [np.concatenate([excluded[n], related[n][0]]) for n in users]
            values, rows = self.scan.top_k(
                vectors[users], k, history_from_item_rows(others), allowed, order
            )
            for n, *unrelated in zip(users, values.numpy(), rows.numpy(), strict=True):
                items = _allowed_items(related[n], excluded[n], allowed)
                best = self._best(vectors[n], unrelated, items, option, order)
                chosen = slice(len(best[0]))
                item_rows[n, chosen], log_benefit = best
                rating[n, chosen] = self.scan.scores(vectors[n], best[0]) + bias[n]
                benefit[n, chosen] = np.exp(log_benefit + np.float32(order.slope) * bias[n])
        ranked = RankedItems(torch.from_numpy(benefit), torch.from_numpy(item_rows))
        probability = self.sparse.probability(readers, related, ranked.item_rows)
        return ranked, probability, torch.from_numpy(rating)

    def _best(
        self,
        vector: Floats,
        unrelated: list[Floats],
        related: tuple[Ints, Floats],
        option: _Option,
        order: Order,
    ) -> tuple[Ints, Floats]:
        """Return the best of unrelated items, given by log benefits and rows, and of related items,
        given by rows and probabilities: rows and log benefits, best first."""
        (values, rows), (related_rows, probability) = unrelated, related
        _, q, damping = option
        related_values = self.sparse.related_benefit(related_rows, probability, q, damping)
        scores = self.scan.scores(vector, related_rows).astype(np.float64)
        related_values = (related_values + order.slope * scores).astype(np.float32)
        is_item = values > EXCLUDED_SCORE
        all_rows = np.concatenate([rows[is_item].astype(np.int64), related_rows])
        values = np.concatenate([values[is_item], related_values])
        best = np.lexsort((all_rows, -values))[: len(rows)]
        return all_rows[best], values[best]

    def _order(self, length: int, q: float, damping: float) -> Order:
        """Return the order of unrelated items: their log benefit, without the user bias."""
        slope = q * self.sparse.ranker.rating_scale
        unrelated = self.sparse.unrelated_benefit(length, q, damping)
        constants = unrelated.numpy()

        def rescore(rows: Ints, scores: Floats) -> Floats:
            out: Floats = (constants[rows] + slope * scores.astype(np.float64)).astype(np.float32)
            return out

        return Order(slope, unrelated, rescore)


def _allowed_items(
    items: tuple[Ints, Floats], excluded: Ints, candidates: Ints | None
) -> tuple[Ints, Floats]:
    """Return the items that may be recommended, of rows and probabilities."""
    rows, probability = items
    is_allowed = ~np.isin(rows, excluded)
    if candidates is not None:
        is_allowed &= np.isin(rows, candidates)
    return rows[is_allowed], probability[is_allowed]


class BenefitOrder(NamedTuple):
    """What the order of lists by expected benefit needs besides the model of ratings."""

    take_up_model: Model
    domain: DomainInfo  # of the ratings that the model of ratings was trained on
    quality: float = DEFAULT_QUALITY

    def ranker(self, model: Model) -> BenefitRanker:
        """Return the ranker of a frozen model of ratings in this order."""
        return BenefitRanker(CatalogRanker(model), self.take_up_model, self.domain)


def check_quality(quality: float | None) -> float:
    """Return the quality of a request, or the default; ConfigError: it is not between 0 and 1."""
    if quality is None:
        return DEFAULT_QUALITY
    return check_share("quality", quality)
