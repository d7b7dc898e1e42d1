"""A trained model with its catalogue: ids in, ids out. Used by `Recommender` and by the server.

Reads histories, ranks the catalogue and builds result lists. Knows no training and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor

from idcf.data.history_reader import (
    HistoryReader,
    NewUser,
    as_users,
    history_from_item_rows,
    read_new_user,
    read_new_users,
)
from idcf.data.interactions import Floats, Interactions, Ints, row_lookup
from idcf.data.split import split_by_key_users
from idcf.errors import ColdUserError, ConfigError
from idcf.inference.artifact import Artifact
from idcf.inference.benefit import BenefitRanker, check_quality
from idcf.inference.topk import EXCLUDED_SCORE, CatalogRanker, mask_scores_1d, top_k_1d
from idcf.results import Recommendation, RecommendationBatch, Recommendations
from idcf.types import History, Users

_MIN_BATCH = 8  # below this, ranking one by one is faster
_MIN_BATCH_WITH_STD = 2  # for standard deviations there is less to gain one by one
_MAX_USERS_WITH_STD = 512  # per block: posteriors and item moments need memory for each user
SOURCE_POPULAR = "popular"  # source of a list for a user with neither history nor features
SOURCE_FEATURES = "features"  # source of a list for a user with features and no history


class TableLike(Protocol):
    """A dataframe of pandas, polars or Arrow."""

    @property
    def columns(self) -> Any:
        """Columns or their names."""


class ListOptions(TypedDict, total=False):
    """Options of a recommendation list in item ids, see `Recommender.recommend`."""

    n: int
    filter_seen: bool
    candidates: Iterable[Any] | None
    exclude: Iterable[Any] | None
    return_std: bool
    quality: float | None


class Filters(NamedTuple):
    """The items that may be recommended, as rows of the catalogue."""

    candidates: Ints | None = None  # None: all items
    excluded: Ints | None = None  # items never recommended; None: no items
    filter_seen: bool = True  # whether the items of the history are excluded

    def excluded_rows(self, seen: Ints) -> Ints:
        """Return the rows of all items excluded for a user with these seen items."""
        if self.excluded is None:
            return seen if self.filter_seen else seen[:0]
        return np.concatenate([seen, self.excluded]) if self.filter_seen else self.excluded


class RankingQuery(NamedTuple):
    """A request for the n best items of one user."""

    new_user: NewUser
    n: int  # number of items
    filters: Filters = Filters()  # all items but those of the history by default
    return_std: bool = False  # add standard deviations, if the model has a posterior
    user_id: Hashable = None  # copied into the result
    quality: float | None = None  # see `idcf.inference.benefit`; None: the default


class RankedList(NamedTuple):
    """The best items of one user, best first, as rows of the catalogue."""

    item_rows: list[int]
    scores: list[float]
    std: list[float] | None = None
    probability: list[float] | None = None
    rating: list[float] | None = None

    def first(self, n: int) -> RankedList:
        """Return the first n items, of which there may be more."""
        return RankedList(*(None if x is None else x[:n] for x in self))  # type: ignore[arg-type]


class Predictor:
    """Recommend, predict and embed with a trained model, in item ids instead of rows.

    `recommend_known` needs the training table; a loaded model has none.
    """

    def __init__(self, artifact: Artifact, training_table: Interactions | None = None) -> None:
        self.artifact, self.training_table = artifact, training_table
        self.domain = artifact.manifest.domain
        self.user_encoder = artifact.manifest.user_encoder
        self.item_ids, self.titles = artifact.items.ids, artifact.titles
        self.source = artifact.model.source
        ranking = artifact.model.ranking_without_data()
        self.popularity = None if ranking is None else ranking.cpu().numpy()

    @cached_property
    def ranker(self) -> CatalogRanker:
        """Scores and ranks the catalogue; built when it is first used, which freezes the model."""
        return CatalogRanker(self.artifact.model)

    @cached_property
    def benefit_ranker(self) -> BenefitRanker | None:
        """Orders lists by expected benefit; None: the artifact has no take-up model."""
        take_up_model = self.artifact.take_up_model
        if take_up_model is None:
            return None
        return BenefitRanker(self.ranker, take_up_model, self.domain)

    def check_quality(self, quality: float | None) -> float | None:
        """Return a valid quality of a request; ConfigError: the lists of this model have none."""
        if self.artifact.take_up_model is not None:
            return check_quality(quality)
        if quality is not None:
            raise ConfigError(
                "quality needs a model that knows both how likely an item is taken up and how it "
                "is rated: fit idcf-bayes on a table with ratings"
            )
        return None

    @cached_property
    def history_reader(self) -> HistoryReader:
        """Translates ids and ratings of histories into rows and values."""
        return HistoryReader(
            self.artifact.items,
            implicit=self.domain.implicit,
            levels=self.domain.levels,
            titles=self.titles,
        )

    def read_new_user(self, history: Any, features: Any = None) -> NewUser:
        """Translate one history, and features if there are any, into rows and values."""
        return read_new_user(self.history_reader, self.user_encoder, history, features)

    def read_new_users(
        self, histories: Any, features: Any = None
    ) -> tuple[list[Hashable], list[NewUser]]:
        """Translate a list or a table of histories; return user ids (None in a list) and users."""
        return read_new_users(self.history_reader, self.user_encoder, histories, features)

    def make_filters(
        self,
        candidates: Iterable[Any] | None,
        exclude: Iterable[Any] | None,
        filter_seen: bool = True,
    ) -> Filters:
        """Translate item ids into filters; None: all items, or none excluded.

        Unknown ids are ignored, unless all candidates are unknown.
        """
        reader = self.history_reader
        return Filters(
            None if candidates is None else reader.item_rows(candidates, "candidates"),
            None if exclude is None else reader.item_rows(exclude, "exclude", strict=False),
            filter_seen,
        )

    def embed(self, new_users: Sequence[NewUser]) -> Floats:
        """Return the embeddings of new users: [B, D]."""
        vectors: Floats = self.ranker.embed_users(as_users(new_users)).vector.float().cpu().numpy()
        return vectors

    def recommend(
        self, queries: Sequence[RankingQuery], *, min_batch: int | None = None
    ) -> RecommendationBatch:
        """Rank the catalogue for new users: one list per query.

        Queries are computed together if their users have histories and they share one candidate
        set (the same array, or None), and if there are `min_batch` such queries (None: where that
        is faster); other queries are computed one by one.
        """
        if not queries:
            return RecommendationBatch()
        candidates = _shared_candidates(queries)
        in_batch = [
            len(x.new_user.item_rows) > 0 and x.filters.candidates is candidates for x in queries
        ]
        batch = list(compress(queries, in_batch))
        if min_batch is None:
            min_batch = _MIN_BATCH_WITH_STD if self._needs_std(batch) else _MIN_BATCH
        if len(batch) < max(min_batch, 1):
            return RecommendationBatch(self._recommend_one(x) for x in queries)
        lists = self._rank_batch(as_users([x.new_user for x in batch]), batch)
        return RecommendationBatch(
            next(lists) if batched else self._recommend_one(x)
            for x, batched in zip(queries, in_batch, strict=True)
        )

    def recommend_known(
        self,
        user_ids: Sequence[Hashable],
        n: int,
        filters: Filters,
        return_std: bool,
        quality: float | None = None,
    ) -> RecommendationBatch:
        """Rank the catalogue for users of the training table, with their training histories.

        ColdUserError: there is no training table, or the model was not trained on a user.
        """
        table, is_inductive = self._require_training_table(), self.artifact.model.inductive
        if not user_ids:
            return RecommendationBatch()
        rows = np.array([self._training_row_by_id.get(x, -1) for x in user_ids], np.int64)
        users = table.build_users(rows)
        is_trained = users.history.lengths().numpy() > 0
        if not is_inductive:
            is_trained &= np.isin(rows, self._training_key_users)
        for position in np.flatnonzero(~is_trained)[:1]:
            raise ColdUserError(
                f"user {user_ids[position]!r} was not trained on; pass their history= instead"
            )
        ends = users.history.offsets[1:-1].numpy()
        item_rows = np.split(users.history.items.numpy(), ends)
        values = np.split(users.history.values.numpy(), ends)
        queries = [
            RankingQuery(NewUser(user_items, user_values), n, filters, return_std, user_id, quality)
            for user_items, user_values, user_id in zip(item_rows, values, user_ids, strict=True)
        ]
        users = users.anonymous() if is_inductive else users
        return RecommendationBatch(self._rank_batch(users, queries))

    def _require_training_table(self) -> Interactions:
        """Return the training table; raise ColdUserError if there is none."""
        if self.training_table is None:
            raise ColdUserError(
                "a loaded model does not store training histories; pass history= instead"
            )
        return self.training_table

    @cached_property
    def _training_row_by_id(self) -> dict[Hashable, int]:
        """Row of every user id of the training table."""
        return row_lookup(self._require_training_table().users)

    @cached_property
    def _training_key_users(self) -> Ints:
        """Rows of the key users: the choice of `fit`, repeated from the manifest."""
        table, manifest = self._require_training_table(), self.artifact.manifest
        data, no_rows = manifest.training_data, table.where(np.empty(0, np.int64))
        return split_by_key_users(
            table, no_rows, data.key_threshold, data.key_user_rule, manifest.seed
        ).key_users

    def _recommend_one(self, query: RankingQuery) -> Recommendations:
        """Rank the catalogue for one user on NumPy arrays."""
        user, filters, quality = query.new_user, query.filters, self.check_quality(query.quality)
        history, probability = (user.item_rows, user.values, user.features), None
        if self.benefit_ranker is None or quality is None:
            scores = ratings = self.ranker.score_one_user(*history)
        else:
            scores, probability, ratings = self.benefit_ranker.score_one_user(*history, quality)
        order = scores
        if self.popularity is not None and not user.has_data:
            order = self.popularity.copy()
        mask_scores_1d(order, filters.excluded_rows(user.item_rows), filters.candidates)
        rows = top_k_1d(order, query.n)
        std = None
        if self._needs_std([query]):
            std = self._rating_std(user, rows).tolist()
        ranked = RankedList(
            rows.tolist(),
            scores[rows].tolist(),
            std,
            None if probability is None else probability[rows].tolist(),
            ratings[rows].tolist() if self.artifact.model.predicts_ratings else None,
        )
        return self._query_result(query, ranked)

    def _rank_batch(
        self, users: Users, queries: Sequence[RankingQuery]
    ) -> Iterator[Recommendations]:
        """Yield the list of each query; the users have histories, the queries one candidate set."""
        candidate_rows = queries[0].filters.candidates
        candidates = None if candidate_rows is None else torch.from_numpy(candidate_rows)
        k, needs_std = max(x.n for x in queries), self._needs_std(queries)
        buffer = self.ranker.score_buffer(len(users)) if self.benefit_ranker is None else None
        for rows, block in self.ranker.blocks(users, _MAX_USERS_WITH_STD if needs_std else None):
            part = queries[rows]
            excluded = history_from_item_rows(
                [x.filters.excluded_rows(x.new_user.item_rows) for x in part]
            )
            if self.benefit_ranker is None:
                lists = self._rank_block(block, k, excluded, candidates, buffer, needs_std)
            else:
                quality = torch.tensor([self.check_quality(x.quality) for x in part])
                lists = self._rank_block_by_benefit(
                    self.benefit_ranker, block, quality, k, excluded, candidates, needs_std
                )
            for query, ranked in zip(part, lists, strict=True):
                yield self._query_result(query, ranked)

    def _rank_block(
        self,
        users: Users,
        k: int,
        excluded: History,
        candidates: Tensor | None,
        buffer: Tensor | None,
        needs_std: bool,
    ) -> Iterator[RankedList]:
        """Yield the k best items of each user by the scores of the model."""
        std: Iterable[list[float] | None] = [None] * len(users)
        if needs_std:
            ranked, deviations = self.ranker.top_k_block_with_std(
                users, k, excluded, candidates, buffer
            )
            std = deviations.tolist()
        else:
            ranked = self.ranker.top_k_block(users, k, excluded, candidates, buffer)
        columns = ranked.item_rows.tolist(), ranked.scores.tolist(), std
        for item_rows, scores, item_std in zip(*columns, strict=True):
            rating = scores if self.artifact.model.predicts_ratings else None
            yield RankedList(item_rows, scores, item_std, None, rating)

    def _rank_block_by_benefit(
        self,
        benefit_ranker: BenefitRanker,
        users: Users,
        quality: Tensor,
        k: int,
        excluded: History,
        candidates: Tensor | None,
        needs_std: bool,
    ) -> Iterator[RankedList]:
        """Yield the k items of highest expected benefit of each user."""
        ranked, probability, rating = benefit_ranker.top_k_block(
            users, quality, k, excluded, candidates
        )
        std: Iterable[list[float] | None] = [None] * len(users)
        if needs_std:
            std = self.ranker.rating_std_with_histories(users, ranked.item_rows).tolist()
        columns = (ranked.item_rows, ranked.scores, probability, rating)
        for item_std, *values in zip(std, *(x.tolist() for x in columns), strict=True):
            item_rows, scores, probabilities, ratings = values
            yield RankedList(item_rows, scores, item_std, probabilities, ratings)

    def _needs_std(self, queries: Iterable[RankingQuery]) -> bool:
        """Return whether a query wants standard deviations and the model has them."""
        return self.artifact.model.has_uncertainty and any(x.return_std for x in queries)

    def _query_result(self, query: RankingQuery, ranked: RankedList) -> Recommendations:
        """Build the result of a query from ranked items, of which there may be more than n."""
        user, source = query.new_user, self.source
        if not len(user.item_rows):
            source = SOURCE_FEATURES if user.has_data else SOURCE_POPULAR
        ranked = ranked.first(query.n)
        if not query.return_std:
            ranked = ranked._replace(std=None)
        return Recommendations(self._build_items(ranked, source), user.unknown_items, query.user_id)

    def _build_items(self, ranked: RankedList, source: str) -> list[Recommendation]:
        """Name ranked items by id and title, without excluded items."""
        ids, titles, nothing = self.item_ids, self.titles, [None] * len(ranked.item_rows)
        columns = (
            ranked.item_rows,
            ranked.scores,
            ranked.std or nothing,
            ranked.probability or nothing,
            ranked.rating or nothing,
        )
        return [
            Recommendation(ids[row], score, rank, titles[row], std, source, probability, rating)
            for rank, (row, score, std, probability, rating) in enumerate(
                zip(*columns, strict=True), 1
            )
            if score > EXCLUDED_SCORE
        ]

    def predict(
        self, new_user: NewUser, items: Iterable[Any], return_std: bool
    ) -> tuple[Floats, Floats]:
        """Return scores and standard deviations of items, one value each; unrequested std is empty.

        DataError: an item is unknown. ConfigError: the model has no standard deviations.
        """
        rows = [self.history_reader.item_row(x) for x in items]
        std = self._rating_std(new_user, np.array(rows)) if return_std else np.empty(0)
        scores = self.ranker.score_one_user(new_user.item_rows, new_user.values, new_user.features)
        return scores[rows], std.astype(np.float32)

    def _rating_std(self, user: NewUser, item_rows: Ints) -> Floats:
        """Return the standard deviations [K] of the ratings of items [K] for one user."""
        if not self.artifact.model.has_uncertainty:
            raise ConfigError(no_posterior_message("a standard deviation", self.source))
        return self.ranker.rating_std_of_one_user(
            user.item_rows, user.values, user.features, item_rows
        )

    def similar_items(self, item: Any, n: int) -> Recommendations:
        """Return the n items most similar to one item; the score is the similarity.

        ConfigError: the model has no similarity between items.
        """
        row = self.history_reader.item_row(item)
        similarities = self.ranker.item_similarities(row)
        similarities[row] = EXCLUDED_SCORE
        rows = top_k_1d(similarities, n)
        ranked = RankedList(rows.tolist(), similarities[rows].tolist())
        return Recommendations(self._build_items(ranked, self.source))


def no_posterior_message(operation: str, source: str) -> str:
    """Return the error message of an operation that needs a posterior model."""
    return (
        f"{operation} needs a posterior model such as idcf-bayes; the scores of this model come "
        f"from {source!r}"
    )


def _shared_candidates(queries: Sequence[RankingQuery]) -> Ints | None:
    """Return the candidates of all queries if they are one array, else None."""
    first = queries[0].filters.candidates
    return first if all(x.filters.candidates is first for x in queries) else None
