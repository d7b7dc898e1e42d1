"""The public class: fit on a table, recommend to users who are not in it, save, load.

Training code is imported by `fit` alone, so that serving does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from numpy.typing import ArrayLike

from idcf.data.history_reader import warn_ignored_ratings
from idcf.data.inputs import Features, Histories, History, InteractionsTable, Table, TableLike
from idcf.data.interactions import Floats, Interactions
from idcf.data.missing_values import MissingRule
from idcf.data.readers import DuplicateRule
from idcf.errors import require_positive_count
from idcf.inference import requests
from idcf.inference.artifact import Artifact, load_artifact, save_artifact
from idcf.inference.estimator import Estimator
from idcf.inference.explain import explain
from idcf.inference.from_factors import Biases, FoldInSpec, from_factors
from idcf.inference.manifest import RecommenderConfig
from idcf.inference.new_items import add_items
from idcf.inference.onnx import export_onnx
from idcf.inference.predictions import (
    predict_if_shown,
    predict_interval,
    predict_scores,
)
from idcf.inference.predictor import Predictor
from idcf.inference.questions import next_questions
from idcf.inference.ranking_query import ListOptions
from idcf.inference.recency import Recency
from idcf.models.base import resolve_device
from idcf.models.registry import model_entry
from idcf.results import (
    Explanation,
    PredictionInterval,
    Questions,
    RecommendationBatch,
    Recommendations,
)

if TYPE_CHECKING:
    from idcf.training.engine import Engine

_UPDATE_LOCK = Lock()  # serializes partial_fit_items, so that no update is lost


class Recommender(Estimator):
    """Recommend items to new users from their first few interactions.

    All methods raise DataError for input that they cannot read, such as a history or an item id,
    and ConfigError before `fit`, for options out of range, and where the model has no such
    ability, such as a posterior.

    Parameters
    ----------
    model
        Name of the model, see `idcf.all_models`. An unknown name raises ConfigError.
    key_threshold
        Smallest number of interactions of a key user; only key users are trained on. None: 30
        (the paper's δ), or the median over users where that is smaller.
    key_users
        Which users above the threshold become key users: "threshold" (all of them), "random"
        (half), "informative", or a number of informative users.
    preset
        Set of default options: "clean", or "published" for those of the paper's code.
    seed
        Seed of the random numbers: the same seed gives the same model.
    device
        Where to train: "auto" (a GPU if one is visible), "cpu" or "cuda".
    **options
        Options of the model or of its training, such as `heads=2` or `epochs=5`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from idcf import Recommender
    >>> users, items = zip(*[(u, i) for u in range(12) for i in range(10) if (u * i) % 7 != 3])
    >>> likes = [u % 2 == i % 2 for u, i in zip(users, items)]  # even users like even items
    >>> ratings = [5.0 if liked else 1.0 for liked in likes]
    >>> table = pa.table({"user_id": users, "item_id": items, "rating": ratings})
    >>> recommender = Recommender("als", device="cpu").fit(table)
    >>> recommender
    <Recommender als: 9 key users, 107 rows of ratings, 10 items>
    >>> [x.item_id % 2 for x in recommender.recommend({2: 5, 4: 5, 3: 1}, n=3)]
    [0, 0, 0]
    """

    def __init__(
        self,
        model: str = "idcf-bayes",
        *,
        key_threshold: int | None = None,
        key_users: str | int = "threshold",
        preset: str = "clean",
        seed: int = 0,
        device: str = "auto",
        **options: Any,
    ) -> None:
        model_entry(model)
        self.config = RecommenderConfig(
            model, options, key_threshold, key_users, preset, seed, device
        )
        self._predictor: Predictor | None = None  # swapped as a whole; calls in flight keep theirs

    def _set_state(self, artifact: Artifact, training_table: Interactions | None = None) -> None:
        """Make the recommender a fitted one, which holds the model of an artifact."""
        self._predictor = Predictor(artifact, training_table)

    def fit(
        self,
        interactions: InteractionsTable,
        *,
        users: Table | None = None,
        items: Table | None = None,
        columns: Mapping[str, str] | None = None,
        implicit: bool | None = None,
        missing: MissingRule = "error",
        weight: str | None = None,
        duplicates: DuplicateRule = "last",
        titles: Mapping[Any, str] | None = None,
        attributes: Mapping[str, Mapping[Any, Any]] | Table | None = None,
        card_metrics: bool = False,
        progress: bool = False,
        callback: Callable[[str, Mapping[str, float]], None] | None = None,
        memory: int | float | str | None = None,
        engine: str | Engine | None = None,
        resume: str | Path | None = None,
    ) -> Self:
        """Train the model on a table of interactions, and return this recommender.

        With ratings, idcf-bayes learns how likely a user takes an item up and how they would rate
        it, and orders lists by both; see `quality` of `recommend`. Other models order lists by
        expected rating or, for implicit feedback, by how likely an item is taken up.

        Parameters
        ----------
        interactions
            A dataframe, the path of a file or of a folder of Parquet files, or `Interactions`, with
            columns user_id, item_id and, unless the feedback is implicit, rating.
        users, items
            Tables (or paths of files) of features: user_id or item_id, and one column per feature.
            A column title of `items` gives titles. The other columns of `items` are what `where` of
            `recommend` chooses by; idcf-bayes on ratings also learns from them.
        columns
            Names of columns in all tables, later histories too, such as {"user_id": "customer"}.
        implicit
            Whether to ignore ratings. None: if there are none.
        missing
            "drop": leave out rows that lack an id, a rating or a time. "error": refuse them.
        weight
            Name of a column of clicks that says how much each counts: a number, a time spent, an
            amount. Held-out users choose its power: 1, ½ or 0. Ratings are left aside.
        duplicates
            Of rows that repeat a user and an item the "last" is kept; with "count" the click counts
            as often as it is repeated, or as much as the weights of the rows together.
        titles
            {item_id: title}, instead of those of `items`.
        attributes
            {column: {item_id: value, or list of values}}, or a table (or the path of a file) of
            item_id and one column per attribute. `where` of `recommend` chooses by them, too; no
            model learns from them.
        card_metrics
            Whether to train a second model, to measure the quality for new users in the model card.
        progress
            Whether to show progress bars, in a terminal as text, in a notebook as widgets.
        callback
            Called as callback(stage, metrics) after each epoch, for models trained by epochs.
        memory
            Bytes that the process may take, as a number or a text such as "4GiB". A fit that needs
            more, by an estimate from the size of the table, raises ConfigError before it begins.
            None: half of what is free.
        engine
            "local", "processes" or "ray", or an `Engine`: train by passes over a folder of shards
            (`idcf shard`), which need not fit into memory. None: read the table into memory.
        resume
            Folder of checkpoints (with an engine, of finished passes) from which an interrupted fit
            goes on. ConfigError: it is of another fit.
        """
        from idcf.training.fit import FitArguments, fit

        arguments = FitArguments(
            users=users,
            items=items,
            columns=columns,
            implicit=implicit,
            missing=missing,
            weight=weight,
            duplicates=duplicates,
            titles=titles,
            attributes=attributes,
            card_metrics=card_metrics,
            progress=progress,
            callback=callback,
            memory=memory,
            engine=engine,
            resume=resume,
        )
        self._set_state(*fit(self.config, interactions, arguments))
        return self

    def partial_fit_items(
        self,
        interactions: InteractionsTable,
        *,
        histories: Mapping[Any, History] | Table | None = None,
        columns: Mapping[str, str] | None = None,
        titles: Mapping[Any, str] | None = None,
    ) -> Self:
        """Add new items, or more ratings of known ones, and return this recommender.

        Calls in other threads use the old model until this one returns. ColdUserError: the history
        of a user who rated an item is not known.

        Parameters
        ----------
        interactions, columns, titles
            The new ratings, as for `fit`.
        histories
            The other ratings of users who are not in the table of `fit`: {user_id: history}, or a
            table with a column user_id. A loaded model needs them for all users.

        Examples
        --------
        >>> import numpy as np, pyarrow as pa
        >>> from idcf.testing.synthetic import checkerboard
        >>> table = checkerboard(30, 12, np.random.default_rng(0))  # users u0 ..., items i0 ...
        >>> recommender = Recommender(device="cpu", sweeps=8, burn_in=2).fit(table)
        >>> ratings = pa.table({"user_id": ["u0"], "item_id": ["new"], "rating": [5.0]})
        >>> recommender.partial_fit_items(ratings)
        <Recommender idcf-bayes: 28 key users, 238 rows of ratings, 13 items>
        """
        with _UPDATE_LOCK:
            self._predictor = add_items(
                self.predictor, interactions, histories=histories, columns=columns, titles=titles
            )
        return self

    def forget(
        self,
        interactions: InteractionsTable,
        user_ids: Sequence[Hashable],
        *,
        ignore_missing: bool = False,
        **arguments: Any,
    ) -> Self:
        """Fit again on a table without some users, and return this recommender.

        The model is that of a `fit` on `interactions` without `user_ids`, bit for bit. `arguments`
        are those of `fit`: `users`, `items`, `titles`, `attributes`, `weight` and `duplicates` as
        they were given then, and perhaps `engine`, `memory` and `progress`. A folder of shards is
        written again without the users; another table is left as it is. DataError: a user is not in
        the table, unless `ignore_missing`. ConfigError: the model was not made by `fit` alone.

        Examples
        --------
        >>> import numpy as np, idcf.testing.synthetic as s
        >>> table = s.checkerboard(30, 12, np.random.default_rng(0))  # users u0 ..., items i0 ...
        >>> Recommender("bias").fit(table).forget(table, ["u7"])
        <Recommender bias: 27 key users, 230 rows of ratings, 12 items>
        """
        from idcf.training.forget import fit_without

        device = self.config.device
        state = fit_without(
            self.manifest, interactions, user_ids, arguments, device, ignore_missing=ignore_missing
        )
        self._set_state(*state)
        return self

    def save(self, folder: str | Path, *, allow_training_rows: bool = False) -> Path:
        """Save the model, its item ids and titles into a folder, and return the folder.

        User ids are not saved, nor are histories, unless `allow_training_rows` lets a model that
        reads its training rows, such as idcf-gc, save them. A model in the folder is replaced.
        ArtifactError: the folder holds anything but a saved model.
        """
        return save_artifact(self.artifact, folder, allow_training_rows=allow_training_rows)

    def export_onnx(self, path: str | Path) -> Path:
        """Write the model as an ONNX file, and return its path; see `idcf.inference.onnx`."""
        return export_onnx(self.artifact, path)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> Self:
        """Load a model that `save` wrote; its scores are the same to the last bit.

        No training histories are in it, so that `recommend(users=...)` is not possible. The device
        is "auto" (a GPU if one is visible), "cpu" or "cuda". ArtifactError: the folder is damaged.
        """
        resolve_device(device)  # before the files are read, which takes longer
        return cls.from_artifact(load_artifact(folder), device=device)

    @classmethod
    def from_artifact(cls, artifact: Artifact, *, device: str = "cpu") -> Self:
        """Make a recommender of an artifact on a device; it has no training histories either."""
        artifact.model.to(resolve_device(device))
        recommender = cls(artifact.manifest.model)
        recommender.config = artifact.manifest.config(device)
        recommender._set_state(artifact)
        return recommender

    @classmethod
    def from_factors(
        cls,
        items: ArrayLike,
        users: ArrayLike | None = None,
        *,
        item_ids: Sequence[Hashable],
        implicit: bool,
        item_bias: ArrayLike | None = None,
        user_bias: ArrayLike | None = None,
        mean: float = 0.0,
        rating_range: tuple[float, float] = (1.0, 5.0),
        titles: Mapping[Any, str] | None = None,
        reg: float = 0.5,
        alpha: float = 10.0,
    ) -> Self:
        """Make a recommender for new users of factors that were trained elsewhere.

        The vector of a new user is solved for; see `idcf.inference.from_factors`.

        Parameters
        ----------
        items
            Item factors [I, D].
        users
            User factors [U, D], to which the prior of new users is fitted. None: a ridge penalty.
        item_ids, titles
            Item ids, one per row of `items`, and {item_id: title}.
        implicit
            Whether the factors were trained on implicit feedback.
        item_bias, user_bias, mean
            Biases [I] and [U], and the mean of the ratings.
        rating_range
            Lowest and highest rating.
        reg
            Weight of the prior; for ratings, the variance of their noise.
        alpha
            Confidence of an interaction of implicit feedback, if no users are given.

        Examples
        --------
        >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
        >>> model.recommend(["a"], n=1)[0].item_id
        'b'
        """
        biases = Biases(item_bias, user_bias, mean)
        spec = FoldInSpec(implicit, reg, alpha, rating_range)
        return cls.from_artifact(from_factors(items, users, item_ids, biases, spec, titles))

    def embed(
        self,
        history: History | Histories | None = None,
        *,
        features: Features | Sequence[Features | None] | None = None,
    ) -> Floats:
        """Return the embedding [D] of one new user, or [B, D] of several.

        `history` and `features` are those of `recommend`.

        Examples
        --------
        >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
        >>> model.embed([["a"], ["a", "b"]]).shape
        (2, 2)
        """
        return requests.embed(self.predictor, history, features)

    @overload
    def recommend(
        self,
        history: Mapping[Any, float] | list[tuple[Any, ...]] | list[str] | list[int] | None = None,
        *,
        features: Features | None = None,
        **options: Unpack[ListOptions],
    ) -> Recommendations: ...

    @overload
    def recommend(
        self,
        history: Sequence[Mapping[Any, float]] | Sequence[list[Any]] | TableLike,
        *,
        features: Sequence[Features | None] | None = None,
        **options: Unpack[ListOptions],
    ) -> RecommendationBatch: ...

    @overload
    def recommend(self, *, users: str | int, **options: Unpack[ListOptions]) -> Recommendations: ...

    @overload
    def recommend(
        self, *, users: list[Any] | tuple[Any, ...], **options: Unpack[ListOptions]
    ) -> RecommendationBatch: ...

    def recommend(
        self,
        history: History | Histories | None = None,
        *,
        users: Hashable | Iterable[Hashable] = None,
        n: int = 10,
        filter_seen: bool = True,
        candidates: Iterable[Hashable] | None = None,
        exclude: Iterable[Hashable] | None = None,
        features: Features | Sequence[Features | None] | None = None,
        return_std: bool = False,
        quality: float | None = None,
        diversity: float = 0.0,
        damping: float = 0.0,
        recency: Recency = 0.0,
        where: Mapping[str, Any] | None = None,
    ) -> Recommendations | RecommendationBatch:
        """Return the n best items for one user, or a batch of such lists for several users.

        Parameters
        ----------
        history
            For one user {item_id: rating}, a list of (item_id, rating) or of (item_id, rating,
            timestamp) or, for implicit feedback, a list of item ids. For several users a list of
            dicts or lists, or a table with a column user_id. An empty history, or one of unknown
            items alone, gets popular items, or those liked by users of its features; `basis` of
            the result says which. It does not fail a batch, and a warning names the user.
        users
            Instead of a history: the id, or a list of ids, of users in the table of `fit`. Others
            are warned of and get popular items.
        filter_seen
            Whether to leave out the items of the history.
        candidates, exclude
            Ids of the only items that may be recommended, and of items that may not.
        features
            {name: value} if the model was fitted with `users`; a list of them for several users.
        return_std
            Whether to add the standard deviation of each rating, and the rating if the item is
            shown and not chosen, if the model has a posterior.
        quality
            For ratings, what the list is ordered by: from 0, what the user will most likely take
            up, to 1, the highest expected ratings. None: 0.4, which balances both.
        diversity
            From 0, the best items, to 1, the best item and then those least similar to the ones
            before; the list is chosen from the 5n best items, at least 100, or with `where` from
            the best tenth, at least 2n. `similar_items` says what similar is.
        damping
            From 0 to 1: divide the probability that an item is taken up by this power of its
            popularity. At 1, `quality=0` orders by lift: how much more likely this user takes an
            item up than others.
        recency
            From 0, the order of a history does not matter, to below 1: an item of the history with
            k later ones weighs 1 / (1 + k)^recency in how likely others are taken up. The order is
            that of the timestamps or, without any, the one given, oldest first. "fitted": the value
            that was best for held-out users in `fit`, which needs timestamps there.
        where
            {column: value, or list of values} of the table `items` of `fit`, such as
            {"genre": "Comedy"}: recommend only items that have one of the values in each column.

        Raises
        ------
        ColdUserError
            If the model cannot score new users, and was not trained on one of the `users`, or has
            no table of `fit`, because it was loaded.

        Examples
        --------
        >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
        >>> [x.item_id for x in model.recommend(["a"])]
        ['b', 'c']
        >>> model.recommend([["a"], ["c"]], n=1).to_table()["item_id"].to_pylist()
        ['b', 'b']
        """
        query = self.predictor.list_query(
            n=n,
            filter_seen=filter_seen,
            candidates=candidates,
            exclude=exclude,
            return_std=return_std,
            quality=quality,
            diversity=diversity,
            damping=damping,
            recency=recency,
            where=where,
        )
        return requests.recommend(self.predictor, query, history, users, features)

    def predict(
        self,
        history: History | None,
        items: Iterable[Hashable],
        *,
        features: Features | None = None,
        if_shown: bool = False,
    ) -> Floats:
        """Return the score of each of some items for one new user.

        `history` and `features` are those of `recommend` for one user; `items` are ids. A rating is
        that of an item which the user chooses or, with `if_shown`, of one that is put before the
        user, who may not have chosen it; see `idcf.inference.if_shown`.

        Examples
        --------
        >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=False)
        >>> score_b, score_c = model.predict({"a": 5.0}, ["b", "c"]).tolist()
        >>> score_b > score_c
        True
        """
        new_user = requests.read_one_user(self.predictor, history, features)
        predict = predict_if_shown if if_shown else predict_scores
        return predict(self.predictor, new_user, items)

    def predict_interval(
        self,
        history: History | None,
        items: Iterable[Hashable],
        confidence_level: float = 0.9,
        *,
        features: Features | None = None,
    ) -> PredictionInterval:
        """Predict ratings of some items for one new user, with intervals.

        A rating lies in its interval, which is clipped to the scale, with probability
        `confidence_level`. The model needs a posterior; `history`, `items` and `features` are those
        of `predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from idcf.testing.synthetic import checkerboard
        >>> table = checkerboard(30, 12, np.random.default_rng(0))
        >>> recommender = Recommender(device="cpu", sweeps=8, burn_in=2).fit(table)
        >>> interval = recommender.predict_interval({"i2": 5, "i3": 1}, ["i4"])
        >>> 1 <= interval.low.item() < interval.high.item() <= 5
        True
        """
        new_user = requests.read_one_user(self.predictor, history, features)
        return predict_interval(self.predictor, new_user, items, confidence_level)

    def explain(
        self,
        history: History | None,
        item: Hashable,
        *,
        features: Features | None = None,
        quality: float | None = None,
        damping: float = 0.0,
        recency: Recency = 0.0,
    ) -> Explanation:
        """Explain the score of one item for one new user by the history and by similar key users.

        `history`, `features`, `quality`, `damping` and `recency` are those of `recommend` for one
        user, and the score is that of its list; `item` is an id.

        Examples
        --------
        >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=False)
        >>> reasons = model.explain({"a": 5.0, "c": 3.0}, "b").reasons
        >>> [x.item_id for x in reasons]  # the largest effect first
        ['a', 'c']
        """
        predictor = self.predictor
        new_user = predictor.read_new_user(history, features)
        warn_ignored_ratings([new_user])
        item_row = predictor.history_reader.item_row(item)
        quality, damping = predictor.check_quality(quality), predictor.check_damping(damping)
        recency = predictor.check_recency(recency)
        return explain(predictor, new_user, item_row, quality, damping, recency)

    def next_question(
        self,
        history: History | None = None,
        n: int = 5,
        *,
        candidates: Iterable[Hashable] | None = None,
        features: Features | None = None,
    ) -> Questions:
        """Return the n items whose answers would say most about a new user, best first.

        `history` and `features` are those of `recommend` for one user; items of the history are not
        asked about. With ratings, the model needs a posterior, and the answer is a rating; for
        idcf-takeup and idcf-odds it is whether the user took the item up or knows it.

        Parameters
        ----------
        candidates
            Ids of items that the user knows, the only ones to ask about. None: all items, weighted
            by how likely a user knows them.
        """
        require_positive_count(n)
        new_user = self.predictor.read_new_user(history, features)
        warn_ignored_ratings([new_user])
        return Questions(next_questions(self.predictor, new_user, n, candidates))
