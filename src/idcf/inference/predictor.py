"""A trained model with its catalogue: ids in, ids out. Used by `Recommender` and by the server.

Reads histories, ranks the catalogue and builds result lists. Knows no training and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idcf.data.columns import warn_about_data
from idcf.data.history_reader import (
    HistoryReader,
    NewUser,
    as_users,
    history_from_item_rows,
    name_users,
    read_new_user,
    read_new_users,
    require_one_user,
)
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.errors import ColdUserError, ConfigError, DataError, require_positive_count
from idcf.inference.artifact import Artifact
from idcf.inference.benefit import BenefitRanker, check_quality
from idcf.inference.if_shown import rating_if_shown
from idcf.inference.ranked_lists import RankedBlock, RankedList
from idcf.inference.ranking_query import (
    Filters,
    RankingQuery,
    block_size,
    damping_of,
    recency_weights_of,
    shared_candidates,
)
from idcf.inference.recency import Recency, check_recency
from idcf.inference.reranking import (
    check_share,
    damp_scores,
    diversify,
    diversify_batch,
    log_popularity,
)
from idcf.inference.topk import (
    EXCLUDED_SCORE,
    CatalogRanker,
    mask_scores,
    mask_scores_1d,
    top_k,
    top_k_1d,
)
from idcf.inference.training_users import TrainingUsers
from idcf.results import Basis, Recommendation, RecommendationBatch, Recommendations
from idcf.types import History, Users

_NO_HISTORY = NewUser(np.empty(0, np.int64), np.empty(0, np.float32))
_MIN_BATCH = 8  # below this, ranking one by one is faster
_MIN_BATCH_WITH_STD = 2  # for standard deviations there is less to gain one by one
_MAX_SIMILARITIES = 1 << 21  # between items of the lists that are diversified at once
_MAX_USERS_WITH_STD = 512  # per block: posteriors and item moments need memory for each user
SOURCE_POPULAR = "popular"  # source of a list for a user with neither history nor features
SOURCE_FEATURES = "features"  # source of a list for a user with features and no history
_BASES: Mapping[str, Basis] = {SOURCE_POPULAR: "popularity", SOURCE_FEATURES: "features"}


class Predictor:
    """Recommend, predict and embed with a trained model, in item ids instead of rows.

    `recommend_known` needs the training table; a loaded model has none.
    """

    def __init__(self, artifact: Artifact, training_table: Interactions | None = None) -> None:
        self.artifact, self.training_table = artifact, training_table
        self.training_users = (
            None if training_table is None else TrainingUsers(training_table, artifact.manifest)
        )
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
    def log_popularity(self) -> Floats | None:
        """Log popularity of every item [I], by which lists are damped; None: there is none."""
        if self.benefit_ranker is not None:
            return self.benefit_ranker.log_popularity
        n_users = self.artifact.model.item_popularity()
        return None if n_users is None else log_popularity(n_users)

    @property
    def attribute_names(self) -> list[str]:
        """Names of the columns by which lists can be restricted."""
        return list(self.artifact.attributes.columns) if self.artifact.attributes else []

    def attribute_values(self, n: int) -> dict[str, list[str]]:
        """Return the n most frequent values of each of these columns, in ascending order."""
        columns = self.artifact.attributes.columns if self.artifact.attributes else {}
        return {name: column.frequent_words(n) for name, column in columns.items()}

    @property
    def n_attribute_values(self) -> dict[str, int]:
        """How many values each of these columns has."""
        columns = self.artifact.attributes.columns if self.artifact.attributes else {}
        return {name: len(column.words) for name, column in columns.items()}

    def check_diversity(self, diversity: float) -> float:
        """Return a valid diversity of a request; ConfigError: the model has no similarities."""
        diversity, model = check_share("diversity", diversity), self.artifact.model
        if diversity and not model.has_item_similarities:
            raise ConfigError(
                f"diversity needs a model with similarities between items; {type(model).__name__} "
                "has none: use an idcf-* model, 'als', 'ease' or 'item-knn'"
            )
        return diversity

    def check_damping(self, damping: float) -> float:
        """Return a valid damping of a request; ConfigError: the lists of this model have none."""
        damping = check_share("damping", damping)
        if damping and self.log_popularity is None:
            raise ConfigError(
                "damping needs a model that knows how likely an item is taken up and how popular "
                "it is: fit idcf-bayes, or 'ease', 'item-knn' or 'als' on implicit feedback"
            )
        return damping

    @property
    def can_weigh_history(self) -> bool:
        """Whether the model that orders lists by who took what weighs the items of a history."""
        model = self.artifact.take_up_model or self.artifact.model
        return model.weighs_history

    def check_recency(self, recency: Recency) -> float:
        """Return a valid recency of a request; ConfigError: this model cannot weigh items."""
        value = check_recency(recency, self.artifact.manifest.fitted_recency)
        if value and not self.can_weigh_history:
            name = type(self.artifact.model).__name__
            raise ConfigError(
                f"recency needs a model that can weigh the items of a history, and {name} cannot: "
                "fit 'idcf-bayes' or, for implicit feedback, 'idcf-takeup'"
            )
        return value

    @cached_property
    def history_reader(self) -> HistoryReader:
        """Translates ids and ratings of histories into rows and values."""
        return HistoryReader(
            self.artifact.items,
            implicit=self.domain.implicit,
            levels=self.domain.levels,
            titles=self.titles,
            columns=self.artifact.manifest.columns,
        )

    def read_new_user(self, history: Any, features: Any = None) -> NewUser:
        """Translate one history, and features if there are any, into rows and values.

        DataError: there are histories of several users."""
        require_one_user(history, self.artifact.manifest.columns)
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
        where: Mapping[str, Any] | None = None,
    ) -> Filters:
        """Translate item ids and attributes into filters; None: all items, or none excluded.

        Unknown ids are ignored, unless all candidates are unknown.
        """
        reader = self.history_reader
        rows, n_unfiltered = None, 0
        if candidates is not None:
            rows = reader.item_rows(candidates, "candidates")
        if where is not None and where != {}:
            n_unfiltered = len(self.item_ids) if rows is None else len(rows)
            matches = self._attribute_rows(where)
            rows = matches if rows is None else np.intersect1d(rows, matches)
        return Filters(
            rows,
            None if exclude is None else reader.item_rows(exclude, "exclude", strict=False),
            filter_seen,
            n_unfiltered,
        )

    def list_query(
        self,
        *,
        n: int = 10,
        filter_seen: bool = True,
        candidates: Iterable[Any] | None = None,
        exclude: Iterable[Any] | None = None,
        return_std: bool = False,
        quality: float | None = None,
        diversity: float = 0.0,
        damping: float = 0.0,
        recency: Recency = 0.0,
        where: Mapping[str, Any] | None = None,
    ) -> RankingQuery:
        """Check the options of `Recommender.recommend`; return the query of an empty history."""
        require_positive_count(n)
        return RankingQuery(
            _NO_HISTORY,
            n,
            self.make_filters(candidates, exclude, filter_seen, where),
            return_std,
            quality=self.check_quality(quality),
            diversity=self.check_diversity(diversity),
            damping=self.check_damping(damping),
            recency=self.check_recency(recency),
        )

    def _attribute_rows(self, where: Mapping[str, Any]) -> Ints:
        """Return the rows of the items that have the attributes; DataError: there are none."""
        if self.artifact.attributes is None:
            raise DataError(
                "where: this model knows no attributes of items; fit it with items= (--items), a "
                "table of item_id and one column per attribute (of the named datasets, ml-100k and "
                "ml-1m alone bring their own)"
            )
        return self.artifact.attributes.rows(where)

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
        candidates = shared_candidates(queries)
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
        query: RankingQuery,
    ) -> RecommendationBatch:
        """Rank the catalogue for users of the training table, with their training histories.

        The user of `query` is not read; its options are those of every list. A user who is not in
        the table has an empty history. ColdUserError: there is no training table, or the model
        scores key users alone and was not trained on a user.
        """
        if self.training_users is None:
            raise ColdUserError(
                "a loaded model does not store training histories; pass history= instead"
            )
        if not user_ids:
            return RecommendationBatch()
        inductive = self.artifact.model.inductive
        is_known = self.training_users.are_known(user_ids, inductive=inductive)
        known_ids = list(compress(user_ids, is_known))
        if unknown_ids := [x for x, known in zip(user_ids, is_known, strict=True) if not known]:
            warn_about_data(
                f"{name_users(unknown_ids)} not in the table that the model was trained on; taken "
                "as without history, for whom popular items are recommended"
            )
        if not known_ids:
            lists: Iterator[Recommendations] = iter(())
        else:
            users, queries = self.training_users.queries(known_ids, query, inductive=inductive)
            lists = self._rank_batch(users, queries)
        unknown = query._replace(new_user=self.history_reader.read_history(None))
        return RecommendationBatch(
            next(lists) if known else self._recommend_one(unknown._replace(user_id=user_id))
            for user_id, known in zip(user_ids, is_known, strict=True)
        )

    def _recommend_one(self, query: RankingQuery) -> Recommendations:
        """Rank the catalogue for one user on NumPy arrays, or a large one by a scan of codes."""
        has_list = len(query.new_user.item_rows) > 0 or self.popularity is None
        if has_list and self._can_scan([query]):
            return next(self._rank_batch(as_users([query.new_user]), [query]))
        user, filters, quality = query.new_user, query.filters, self.check_quality(query.quality)
        weights, probability = query.recency_weights(), None
        if self.benefit_ranker is None or quality is None:
            values = user.values if weights is None else user.values * weights
            scores = ratings = self.ranker.score_one_user(user.item_rows, values, user.features)
            if query.damping and self.log_popularity is not None:
                scores = damp_scores(scores, query.damping, self.log_popularity)
        else:
            scores, probability, ratings = self.benefit_ranker.score_one_user(
                user.item_rows, user.values, user.features, quality, query.damping, weights
            )
        order = scores
        if self.popularity is not None and not user.has_data:
            order = self.popularity.copy()
            if query.damping and self.log_popularity is not None:
                order = damp_scores(order, query.damping, self.log_popularity)
        mask_scores_1d(order, filters.excluded_rows(user.item_rows), filters.candidates)
        rows = top_k_1d(order, query.pool_size())
        if query.diversity:
            rows = rows[self._diverse_positions(rows, query)]
        std = if_shown = None
        if self._needs_std([query]):
            std = self.rating_std(user, rows)
            if_shown = self.rating_if_shown(ratings[rows], std)
        columns = (
            std,
            None if probability is None else probability[rows],
            self.on_scale(ratings[rows]) if self.artifact.model.predicts_ratings else None,
            if_shown,
        )
        others = (None if x is None else x.tolist() for x in columns)
        ranked = RankedList(rows.tolist(), scores[rows].tolist(), *others)
        return self._query_result(query, ranked)

    def _can_scan(self, queries: Iterable[RankingQuery]) -> bool:
        """Return whether lists come from a scan of the codes of a large catalogue."""
        if self.benefit_ranker is not None:
            return self.benefit_ranker.can_scan
        return self.ranker.scan is not None and not any(x.damping for x in queries)

    def _diverse_positions(self, item_rows: Ints, query: RankingQuery) -> Ints:
        """Return the positions of the items that a query chooses from a list of items."""
        similarities = self.ranker.similarities_among(item_rows)
        return diversify(similarities, query.n, query.diversity)

    def _rank_batch(
        self, users: Users, queries: Sequence[RankingQuery]
    ) -> Iterator[Recommendations]:
        """Yield the list of each query; the users have histories, the queries one candidate set."""
        for part, block in self.rank_blocks(users, queries):
            for query, ranked in zip(part, block.lists(), strict=True):
                yield self._query_result(query, ranked)

    def rank_blocks(
        self, users: Users, queries: Sequence[RankingQuery]
    ) -> Iterator[tuple[Sequence[RankingQuery], RankedBlock]]:
        """Yield consecutive queries with their ranked items, of which there may be more than n.

        The users have histories, the queries one candidate set.
        """
        candidate_rows = queries[0].filters.candidates
        candidates = None if candidate_rows is None else torch.from_numpy(candidate_rows)
        needs_std = self._needs_std(queries)
        buffer = (self.benefit_ranker or self.ranker).score_buffer(len(users))
        max_users, only_best = _MAX_USERS_WITH_STD if needs_std else None, self._can_scan(queries)
        for rows, block in self.ranker.blocks(users, max_users, only_best=only_best):
            part = queries[rows]
            excluded = history_from_item_rows(
                [x.filters.excluded_rows(x.new_user.item_rows) for x in part]
            )
            if self.benefit_ranker is None:
                block = block.weighted(recency_weights_of(part))
                parts = self._rank_block(block, part, excluded, candidates, buffer, needs_std)
            else:
                parts = self._rank_block_by_benefit(
                    self.benefit_ranker, block, part, excluded, candidates, buffer
                )
            if any(x.diversity for x in part):
                parts = self._diversify_block(parts, part)
            if needs_std and parts.std is None:
                std = self.ranker.rating_std_with_histories(block, parts.ranked.item_rows)
                parts = parts._replace(std=std.cpu())
            if parts.std is not None and parts.rating is not None:
                if_shown = self.rating_if_shown(parts.rating.numpy(), parts.std.cpu().numpy())
                if if_shown is not None:
                    parts = parts._replace(rating_if_shown=torch.from_numpy(if_shown))
            if parts.rating is not None:
                rating = torch.from_numpy(self.on_scale(parts.rating.cpu().numpy()))
                parts = parts._replace(rating=rating)
            yield part, parts

    def _rank_block(
        self,
        users: Users,
        queries: Sequence[RankingQuery],
        excluded: History,
        candidates: Tensor | None,
        buffer: Tensor | None,
        needs_std: bool,
    ) -> RankedBlock:
        """Return the best items of each user by the scores of the model."""
        k, damping, std = block_size(queries), damping_of(queries), None
        if damping is not None and self.log_popularity is not None:
            scores = self.ranker.score_catalog(users).float().cpu()
            scores = torch.from_numpy(
                damp_scores(scores.numpy(), damping[:, None].numpy(), self.log_popularity)
            )
            ranked = top_k(mask_scores(scores, excluded, candidates), k)
        elif needs_std:
            ranked, std = self.ranker.top_k_block_with_std(users, k, excluded, candidates, buffer)
            std = std.cpu()
        else:
            ranked = self.ranker.top_k_block(users, k, excluded, candidates, buffer)
        rating = ranked.scores if self.artifact.model.predicts_ratings else None
        return RankedBlock(ranked, None, rating, std)

    def _rank_block_by_benefit(
        self,
        benefit_ranker: BenefitRanker,
        users: Users,
        queries: Sequence[RankingQuery],
        excluded: History,
        candidates: Tensor | None,
        buffer: Tensor | None,
    ) -> RankedBlock:
        """Return the items of highest expected benefit of each user."""
        quality = torch.tensor([self.check_quality(x.quality) for x in queries])
        return RankedBlock(
            *benefit_ranker.top_k_block(
                users,
                quality,
                block_size(queries),
                excluded,
                candidates,
                damping_of(queries),
                recency_weights_of(queries),
                buffer,
            )
        )

    def _diversify_block(self, parts: RankedBlock, queries: Sequence[RankingQuery]) -> RankedBlock:
        """Return the items that each query chooses from its best ones; the first n are theirs."""
        width = max(x.n for x in queries)
        scores, item_rows = parts.ranked.scores, parts.ranked.item_rows.cpu().numpy()
        positions = np.tile(np.arange(item_rows.shape[1]), (len(queries), 1))
        n_allowed = (scores > EXCLUDED_SCORE).sum(1).tolist()
        blocks: dict[tuple[int, int], list[int]] = {}  # users by the sizes of pool and list
        for user, (query, n_items) in enumerate(zip(queries, n_allowed, strict=True)):
            if query.diversity and n_items:
                size = min(n_items, query.pool_size())
                blocks.setdefault((size, query.n), []).append(user)
        for (size, n), users in blocks.items():
            for start in range(0, len(users), n_users := max(1, _MAX_SIMILARITIES // size**2)):
                block = np.array(users[start : start + n_users])
                diversity = np.array([queries[x].diversity for x in block], np.float32)
                similarity = self.ranker.similarities_among(item_rows[block, :size])
                chosen = diversify_batch(similarity, n, diversity)
                positions[block, : chosen.shape[1]] = chosen
        return parts.take(torch.from_numpy(positions[:, :width]))

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
            ranked = ranked._replace(std=None, rating_if_shown=None)
        items, basis = self.build_items(ranked, source), _BASES.get(source, "history")
        return Recommendations(items, user.unknown_items, query.user_id, basis)

    def build_items(self, ranked: RankedList, source: str) -> list[Recommendation]:
        """Name ranked items by id and title, without excluded items."""
        ids, titles, nothing = self.item_ids, self.titles, [None] * len(ranked.item_rows)
        columns = (
            ranked.item_rows,
            ranked.scores,
            ranked.std or nothing,
            ranked.probability or nothing,
            ranked.rating or nothing,
            ranked.rating_if_shown or nothing,
        )
        return [
            Recommendation(ids[row], score, rank, titles[row], std, source, *others)
            for rank, (row, score, std, *others) in enumerate(zip(*columns, strict=True), 1)
            if score > EXCLUDED_SCORE
        ]

    def on_scale(self, rating: Floats) -> Floats:
        """Return expected ratings that are not beyond the ends of the rating scale."""
        return rating.clip(self.domain.levels[0], self.domain.levels[-1])

    def rating_if_shown(self, rating: Floats, std: Floats) -> Floats | None:
        """Return expected ratings if the items were shown; None: the model does not know."""
        slope = self.artifact.manifest.choice_slope
        return None if slope is None else rating_if_shown(rating, std, self.domain.levels, slope)

    def rating_std(self, user: NewUser, item_rows: Ints) -> Floats:
        """Return the standard deviations [K] of the ratings of items [K] for one user."""
        return self.ranker.rating_std_of_one_user(
            user.item_rows, user.values, user.features, item_rows
        )
