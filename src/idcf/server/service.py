"""One served model: request bodies in, response bodies out.

Knows neither HTTP nor the event loop. Every method may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, NoReturn

import numpy as np

from idcf.data.history_reader import NewUser, read_times, with_features
from idcf.data.title_search import TitleIndex
from idcf.errors import DataError
from idcf.inference.abilities import suggests_questions
from idcf.inference.explain import explain
from idcf.inference.predictions import (
    predict_if_shown,
    predict_interval,
    predict_scores,
    similar_items,
)
from idcf.inference.predictor import Predictor
from idcf.inference.questions import next_questions
from idcf.inference.ranking_query import Filters, RankingQuery
from idcf.inference.recency import FITTED, Recency
from idcf.recommender import Recommender
from idcf.results import Recommendation, Recommendations
from idcf.server import schemas as s

_SCORE_DIGITS = 5  # further digits, and a little the last, depend on the batch size
_SCALE = 10.0**_SCORE_DIGITS
_NO_FILTERS = Filters()
_WARM_UP_BATCH = 8


class ParsedRequest(NamedTuple):
    """A recommendation request whose ids are translated to item rows."""

    query: RankingQuery
    ignored_ratings: bool  # ratings were given to a model of implicit feedback


class RecommendationService:
    """Answers the requests of `schemas` with one model; ColdUserError: it scores no new users."""

    def __init__(self, recommender: Recommender) -> None:
        self.predictor = recommender.predictor
        _warm_up(self.predictor)
        self.title_index = TitleIndex(
            self.predictor.item_ids, self.predictor.titles, self.predictor.log_popularity
        )

    def model_info(self) -> s.ModelInfo:
        """Describe the served model."""
        manifest, model = self.predictor.artifact.manifest, self.predictor.artifact.model
        return s.ModelInfo(
            model=manifest.fitted_model,
            n_items=len(self.predictor.item_ids),
            implicit=manifest.domain.implicit,
            rating_levels=list(manifest.domain.levels),
            can_explain=model.inductive,
            can_suggest_questions=suggests_questions(model),
            can_choose_quality=self.predictor.artifact.take_up_model is not None,
            can_diversify=model.has_item_similarities,
            can_damp_popularity=self.predictor.log_popularity is not None,
            can_weigh_recency=self.predictor.can_weigh_history,
            fitted_recency=manifest.fitted_recency,
            attributes=self.predictor.attribute_names,
            attribute_values=self.predictor.attribute_values(s.MAX_ATTRIBUTE_VALUES),
            version=manifest.versions.get("idcf", ""),
            training_data_sha256=manifest.training_data.sha256,
            user_data=manifest.user_data,
        )

    def parse_request(self, request: s.RecommendRequest) -> ParsedRequest:
        """Translate the ids of a recommendation request to item rows.

        DataError: no id of the candidates is known, or a rating or a feature does not fit.
        """
        new_user = self._parse_user(request)
        filters = _NO_FILTERS
        if request.exclude or request.candidates or request.where:
            if request.candidates and not any(map(self.has_item, request.candidates)):
                _raise_unknown_items("candidates", request.candidates)
            filters = self.predictor.make_filters(
                request.candidates or None, request.exclude or None, where=request.where or None
            )
        query = RankingQuery(
            new_user,
            request.n,
            filters,
            return_std=True,
            quality=self._check_quality(request.quality),
            diversity=self._check_diversity(request.diversity),
            damping=self._check_damping(request.damping),
            recency=self._check_recency(request.recency),
        )
        return ParsedRequest(query, self._ignores_ratings(request))

    def recommend_batch(self, requests: Sequence[ParsedRequest]) -> list[s.RecommendationList]:
        """Answer parsed recommendation requests in one model call."""
        results = self.predictor.recommend([x.query for x in requests])
        return _recommendation_lists(results, [x.ignored_ratings for x in requests])

    def _check_quality(self, quality: float | None) -> float | None:
        """Return the quality of a request, or the default; DataError: the lists have none."""
        if quality is not None and self.predictor.artifact.take_up_model is None:
            raise DataError("quality: the lists of this model have one order only; leave it out")
        return self.predictor.check_quality(quality)

    def _check_diversity(self, diversity: float) -> float:
        """Return the diversity of a request; DataError: the model has no similarities."""
        if diversity and not self.predictor.artifact.model.has_item_similarities:
            raise DataError("diversity: this model knows no similarity between items; leave it out")
        return self.predictor.check_diversity(diversity)

    def _check_damping(self, damping: float) -> float:
        """Return the damping of a request; DataError: the lists are not by popularity."""
        if damping and self.predictor.log_popularity is None:
            raise DataError("damping: this model does not know how popular items are; leave it out")
        return self.predictor.check_damping(damping)

    def _check_recency(self, recency: Recency) -> float:
        """Return the recency of a request; DataError: the model has none."""
        if recency and not self.predictor.can_weigh_history:
            raise DataError("recency: this model cannot weigh items of a history; leave it out")
        if recency == FITTED and self.predictor.artifact.manifest.fitted_recency is None:
            raise DataError("recency: no value was fitted, as there were no timestamps; give one")
        return self.predictor.check_recency(recency)

    def has_item(self, item: Any) -> bool:
        """Return whether the model knows an item id."""
        return self.predictor.history_reader.knows_item(item)

    def search_items(self, query: str, n: int) -> s.ItemList:
        """Find up to n items by title or id; without a text, the best ones for any new user."""
        ids, titles = self.predictor.item_ids, self.predictor.titles
        if not query.strip():
            empty = self.predictor.history_reader.read_history(None)
            best = self.predictor.recommend([RankingQuery(empty, n)])[0]
            return s.ItemList([s.ItemRef(str(x.item_id), x.title) for x in best])
        rows = self.title_index.search(query, n)
        return s.ItemList([s.ItemRef(str(ids[row]), titles[row]) for row in rows])

    def similar_items(self, item: str, n: int) -> s.RecommendationList:
        """Return the n items most similar to an item; the score is the similarity."""
        self._require_known_items([item], "item_id")
        return _recommendation_lists([similar_items(self.predictor, item, n)], [False])[0]

    def embed(self, request: s.EmbedRequest) -> s.NewUserEmbedding:
        """Return the embedding of a new user."""
        new_user = self._parse_user(request)
        embedding = self.predictor.embed([new_user])[0].tolist()
        return s.NewUserEmbedding(
            [_round(x) for x in embedding], *self._unused_history(request, new_user)
        )

    def predict(self, request: s.PredictRequest) -> s.ItemScoreList:
        """Return the scores of the requested items for a new user."""
        self._require_known_items(request.item_ids, "item_ids")
        new_user, predictor = self._parse_user(request), self.predictor
        rows = [predictor.history_reader.item_row(x) for x in request.item_ids]
        bounds: list[Any] = [()] * len(rows)
        if request.confidence_level is not None:
            if request.if_shown:
                raise DataError(
                    "confidence_level: there are no intervals of ratings if shown; leave out one"
                )
            level = request.confidence_level
            interval = predict_interval(predictor, new_user, request.item_ids, level)
            scores, others = interval.score, (interval.std, interval.low, interval.high)
            bounds = list(zip(*(map(_round, x.tolist()) for x in others), strict=True))
        else:
            predict = predict_if_shown if request.if_shown else predict_scores
            scores = predict(predictor, new_user, request.item_ids)
        items = [
            s.PredictedItem(str(predictor.item_ids[row]), predictor.titles[row], _round(x), *other)
            for row, x, other in zip(rows, scores.tolist(), bounds, strict=True)
        ]
        return s.ItemScoreList(items, *self._unused_history(request, new_user))

    def explain(self, request: s.ExplainRequest) -> s.ExplanationBody:
        """Explain the score of one item for a new user, as `idcf.inference.explain` does."""
        self._require_known_items([request.item_id], "item_id")
        new_user, predictor = self._parse_user(request), self.predictor
        item_row = predictor.history_reader.item_row(request.item_id)
        quality = self._check_quality(request.quality)
        damping = self._check_damping(request.damping)
        recency = self._check_recency(request.recency)
        result = explain(predictor, new_user, item_row, quality, damping, recency)
        return s.ExplanationBody(
            str(result.item_id),
            result.title,
            _round(result.score),
            _round_or_none(result.std),
            [
                s.ReasonBody(str(x.item_id), x.title, x.rating, _round(x.effect))
                for x in result.reasons
            ],
            [s.CohortBody(x.size, _round(x.weight), list(x.liked_titles)) for x in result.cohorts],
            *self._unused_history(request, new_user),
        )

    def next_question(self, request: s.NextQuestionRequest) -> s.QuestionList:
        """Return the items that a new user should be asked about next."""
        new_user = self._parse_user(request)
        reader, ids = self.predictor.history_reader, self.predictor.item_ids
        rows = reader.item_rows(request.exclude, "exclude", strict=False)
        excluded = {ids[row] for row in rows}
        questions = next_questions(self.predictor, new_user, request.n + len(excluded))
        allowed = [x for x in questions if x.item_id not in excluded][: request.n]
        items = [s.QuestionBody(str(x.item_id), x.title, _round(x.expected_gain)) for x in allowed]
        return s.QuestionList(items, *self._unused_history(request, new_user))

    def _parse_user(self, request: s.UserRequest) -> NewUser:
        """Translate the history and the features of a request."""
        history = request.history
        default_rating = 1.0 if self.predictor.domain.implicit else None
        times = [x.timestamp for x in history if x.timestamp is not None]
        if times and len(times) < len(history):
            raise DataError(
                f"history: {len(times)} of {len(history)} items have a timestamp; give it for all "
                "or for none"
            )
        new_user = self.predictor.history_reader.read_pairs(
            [(x.item_id, default_rating if x.rating is None else x.rating) for x in history],
            read_times(times) if times else None,
        )
        if not request.features:
            return new_user
        return with_features(new_user, self.predictor.user_encoder, request.features)

    def _ignores_ratings(self, request: s.UserRequest) -> bool:
        """Return whether the request has ratings, but the model was trained without."""
        return self.predictor.domain.implicit and any(x.rating is not None for x in request.history)

    def _unused_history(self, request: s.UserRequest, new_user: NewUser) -> tuple[list[str], bool]:
        """Return `unknown_items` and `ignored_ratings` of a response."""
        return _ids_as_text(new_user.unknown_items), self._ignores_ratings(request)

    def _require_known_items(self, ids: Sequence[Any], field: str) -> None:
        """Raise an error for the first unknown id, which names the request's `field`."""
        for item in ids:
            if not self.has_item(item):
                _raise_unknown_items(field, [item])


def _warm_up(predictor: Predictor) -> None:
    """Recommend once: the first call is slow, and raises if the model cannot score new users."""
    empty = predictor.history_reader.read_history(None)
    best = predictor.recommend([RankingQuery(empty, 1)])[0]
    history = {best[0].item_id: predictor.domain.levels[-1]} if best else {}
    query = RankingQuery(predictor.history_reader.read_history(history), 1)
    predictor.recommend([query] * _WARM_UP_BATCH)


def _raise_unknown_items(field: str, ids: Sequence[Any]) -> NoReturn:
    """Raise DataError without the nearest titles: clients could keep the server busy with them."""
    first = f"{ids[0]!r:.80}"
    problem = f"{first} is" if len(ids) == 1 else f"all {len(ids)} items, such as {first}, are"
    raise DataError(f"{field}: {problem} unknown to the model; find ids with /v1/items?query=")


def _recommendation_lists(
    results: Sequence[Recommendations], ignored_ratings: Sequence[bool]
) -> list[s.RecommendationList]:
    """Return recommendations as response bodies, numbers rounded.

    All lists are built together, column by column: a list is built in less time than it is ranked.
    """
    rows = list(chain.from_iterable(results))
    item_ids, scores, ranks, titles, stds, sources, *others = (
        zip(*rows, strict=True) if rows else (((),) * len(Recommendation._fields))
    )
    items = map(
        s.RecommendationBody,
        map(str, item_ids),
        titles,
        _round_column(scores),
        _round_column(stds),
        ranks,
        sources,
        *map(_round_column, others),
    )
    return [
        s.RecommendationList(
            list(islice(items, len(x))), _ids_as_text(x.unknown_items), ignored, x.basis
        )
        for x, ignored in zip(results, ignored_ratings, strict=True)
    ]


def _ids_as_text(ids: Iterable[Any]) -> list[str]:
    """Return each id as a string."""
    return [str(x) for x in ids]


def _round_column(values: Sequence[float | None]) -> list[float | None]:
    """Round numbers to _SCORE_DIGITS; None stays None."""
    rounded = np.rint(np.array(values, np.float64) * _SCALE) / _SCALE  # of None: nan
    column: list[float | None] = rounded.tolist()
    if None not in values:
        return column
    return [None if old is None else new for old, new in zip(values, column, strict=True)]


def _round(value: float) -> float:
    """Round a number to _SCORE_DIGITS."""
    return round(value, _SCORE_DIGITS)


def _round_or_none(value: float | None) -> float | None:
    """Round a number to _SCORE_DIGITS; None stays None."""
    return None if value is None else round(value, _SCORE_DIGITS)
