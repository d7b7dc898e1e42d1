"""The public face: fit on a table, recommend to people who are not in it, save, load.
Training code is imported by `fit` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray

from idcf import artifact
from idcf.answers import Answers, Explanation, Predicted, Question, Recommendation, Recommendations
from idcf.artifact import Artifact, Manifest
from idcf.data.histories import as_users, is_many, lookup, named, report
from idcf.data.interactions import Interactions, Ints
from idcf.data.parsers import read_interactions
from idcf.data.side import beside
from idcf.data.split import among
from idcf.desk import NEVER, Asked, Desk, Filters
from idcf.errors import ColdUserError, ConfigError
from idcf.index import best_of
from idcf.metrics.calibration import half_width
from idcf.models import entry, require_option

__all__ = [
    "Answers",
    "Explanation",
    "Predicted",
    "Question",
    "Recommendation",
    "Recommendations",
    "Recommender",
]

Array = NDArray[np.float32]


class Recommender:
    """Recommends to newcomers from their first few interactions.

    Users with at least `key_threshold` interactions are the key users the model is trained on;
    without one it is 30 (the paper's δ), or the median of the users' counts where that is less.
    `key_users` takes fewer of them: "random" (half), "informative", or a number.
    Options are those of the model or of its training, such as `heads=2` or `epochs=5`.
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
        entry(model)
        self.model_name, self.options = model, options
        self.key_threshold, self.key_users, self.preset = key_threshold, key_users, preset
        self.seed, self.device = seed, device
        self._artifact: Artifact | None = None
        self._trained_on: Interactions | None = None

    def __repr__(self) -> str:
        what = f"{len(self._artifact.items):,} items" if self._artifact else "not fitted"
        return f"<Recommender {self.model_name}, {what}>"

    def fit(
        self,
        interactions: Any,
        *,
        users: Any = None,
        items: Any = None,
        columns: Mapping[str, str] | None = None,
        implicit: bool | None = None,
        titles: Mapping[Any, str] | None = None,
        progress: bool = False,
        watcher: Callable[[str, Mapping[str, float]], None] | None = None,
    ) -> Self:
        """Train on a dataframe, a file or `Interactions`. `titles` names items by their ids.

        `users` and `items` are tables (or files) of what else is known of them: `user_id` or
        `item_id`, and a column for each feature; a column `title` of `items` names them. A
        `watcher` hears of every epoch; `idcf.train.trackers` has some.
        """
        from idcf.train.deploy import deploy

        table = read_interactions(interactions, columns=columns, implicit=implicit)
        more = beside(table, users, items)
        for option in more.features:
            require_option(self.model_name, option)
        self._use(
            deploy(
                self.model_name,
                more.table,
                named(table.items, more.titles if titles is None else titles),
                {**dict.fromkeys(more.features, True), **self.options},
                key_threshold=self.key_threshold,
                key_users=self.key_users,
                user_features=more.of_users,
                preset=self.preset,
                seed=self.seed,
                device=self.device,
                progress=progress,
                watcher=watcher,
            )
        )
        self._trained_on = more.table
        return self

    def save(self, folder: str | Path) -> Path:
        """Write the model, its item ids and titles; see `idcf.artifact`."""
        return artifact.save(self._fitted(), folder)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> Self:
        """Read what `save` wrote; refused with a reason where it is not whole."""
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}")
        found = artifact.load(folder)
        m = found.manifest
        known = {"preset": m.preset, "seed": m.seed, "device": device, **m.options}
        delta, chosen = m.data.key_threshold, m.data.chosen
        out = cls(m.model, key_threshold=delta, key_users=chosen, **known)
        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        found.model.to("cuda" if cuda else "cpu")
        out._use(found)
        return out

    def embed(self, history: Any = None, *, features: Any = None) -> Array:
        """The vector of a newcomer [D], or of each of a list or table of them [B, D]."""
        desk, many = self._desk(), is_many(history)
        reads = desk.reads(history, features)[1] if many else [desk.read(history, features)]
        report(reads)
        vectors = desk.embed(reads)
        return vectors if many else vectors[0]

    @overload
    def recommend(
        self,
        history: Mapping[Any, float] | None = None,
        *,
        n: int = 10,
        filter_seen: bool = True,
        candidates: Iterable[Any] | None = None,
        exclude: Iterable[Any] | None = None,
        features: Mapping[str, Any] | None = None,
        std: bool = False,
    ) -> Recommendations: ...

    @overload
    def recommend(
        self,
        history: Any = None,
        *,
        users: Any = None,
        n: int = 10,
        filter_seen: bool = True,
        candidates: Iterable[Any] | None = None,
        exclude: Iterable[Any] | None = None,
        features: Any = None,
        std: bool = False,
    ) -> Any: ...

    def recommend(
        self,
        history: Any = None,
        *,
        users: Any = None,
        n: int = 10,
        filter_seen: bool = True,
        candidates: Iterable[Any] | None = None,
        exclude: Iterable[Any] | None = None,
        features: Any = None,
        std: bool = False,
    ) -> Any:
        """The n best items for a newcomer; an empty history gets what is popular, or what people
        of these `features` like: a dict, where the model was fitted with `users`.

        A list of histories, a table with a column `user_id`, or a list of known `users` gets
        `Answers`: a list of such lists, and `to_table()`. Items of the history are left out
        unless `filter_seen` is off. `std` asks a posterior model how sure it is of each: the
        standard deviation of the rating.
        """
        desk = self._desk()
        _require_count(n)
        if users is not None and (history is not None or features is not None):
            raise ConfigError("give either a history (and features) or users, not both")
        filters = desk.filters(candidates, exclude, filter_seen)
        if users is not None:
            return self._known(users, n, filters, std)
        if not is_many(history):
            return desk.one(Asked(desk.read(history, features), n, filters, std))
        who, reads = desk.reads(history, features)
        found = desk.many(as_users(reads), n, filters, who, std)
        for answer, read in zip(found, reads, strict=True):
            answer.unknown_items = read.unknown
        return found

    def predict(self, history: Any, items: Iterable[Any], *, features: Any = None) -> Array:
        """The score of each of the items for one newcomer."""
        return self._predict(history, items, features)[0]

    def predict_interval(
        self, history: Any, items: Iterable[Any], level: float = 0.9, *, features: Any = None
    ) -> Predicted:
        """As `predict`, with the interval that the rating lies in with this probability."""
        scores, std = self._predict(history, items, features, sure=True)
        half = half_width(level) * std
        return Predicted(scores, std, scores - half, scores + half)

    def _predict(
        self, history: Any, items: Iterable[Any], features: Any, sure: bool = False
    ) -> tuple[Array, Array]:
        desk = self._desk()
        read, rows = desk.read(history, features), [desk.reader.row(x) for x in items]
        report([read])
        std = desk.deviations(as_users([read]), np.array([rows])) if sure else np.empty((1, 0))
        scores = desk.index.one(read.rows, read.values, read.features)[rows]
        return scores, std[0].astype(np.float32)

    def similar_items(self, item: Any, n: int = 10) -> Recommendations:
        """The items most like this one; the score is their likeness."""
        _require_count(n)
        desk = self._desk()
        row = desk.reader.row(item)
        scores = desk.index.similar(row)
        scores[row] = NEVER
        rows = best_of(scores, n)
        return desk.listed(rows.tolist(), scores[rows].tolist())

    def explain(self, history: Any, item: Any) -> Explanation:
        """Why this item is recommended: which of their own items, which cohorts of key users."""
        desk = self._desk()
        if not self._fitted().model.inductive:
            raise ConfigError(
                f"{self.model_name!r} knows no newcomers, so it cannot explain itself"
            )
        return desk.explain(desk.reader.one(history), desk.reader.row(item))

    def next_question(self, history: Any = None, n: int = 5) -> list[Question]:
        """The items whose answer would tell most about a newcomer, the best first."""
        _require_count(n)
        desk = self._desk()
        return desk.questions(desk.reader.one(history), n)

    @property
    def desk(self) -> Desk:
        """The fitted model with its ids and titles: what a server reads and answers with."""
        return self._desk()

    @property
    def about(self) -> Manifest:
        """What the model is, and what it was trained on."""
        return self._fitted().manifest

    def _known(self, users: Any, n: int, filters: Filters, std: bool) -> Any:
        """Lists for people who were in the training table, which only `fit` leaves in memory."""
        desk, table, model = self._desk(), self._trained_on, self._fitted().model
        if table is None:
            raise ColdUserError("a loaded model keeps nobody's history; pass history= instead")
        one = isinstance(users, str | int)
        who, row = [users] if one else list(users), lookup(table.users)
        ids = np.array([row.get(x, -1) for x in who], np.int64)
        known = table.people(ids)
        trained = known.history.lengths().numpy() > 0
        if not model.inductive:
            trained &= np.isin(ids, _key_users(table, self.about))
        for x in np.flatnonzero(~trained):
            raise ColdUserError(f"user {who[x]!r} was not trained on; pass their history= instead")
        found = desk.many(known.anonymous() if model.inductive else known, n, filters, who, std)
        return found[0] if one else found

    def _use(self, found: Artifact) -> None:
        self._artifact, self._at_work = found, Desk(found)

    def _fitted(self) -> Artifact:
        if self._artifact is None:
            raise ConfigError("this recommender is not fitted; call fit, or use Recommender.load")
        return self._artifact

    def _desk(self) -> Desk:
        self._fitted()
        return self._at_work


def _key_users(table: Interactions, about: Manifest) -> Ints:
    """Who was trained on: the choice that `fit` made, made again."""
    d, nothing = about.data, table.where(np.empty(0, np.int64))
    return among(table, nothing, d.key_threshold, d.chosen, about.seed).key_users


def _require_count(n: int) -> None:
    if not isinstance(n, int | np.integer) or n < 1:
        raise ConfigError(f"n must be a whole number from 1, got {n!r}")
