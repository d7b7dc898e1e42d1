"""The public face: fit on a table, recommend to people who are not in it, save, load.
Training code is imported by `fit` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.data.history_reader import is_many, named, report
from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.data.side_tables import beside
from idcf.errors import ConfigError, require_count
from idcf.inference import artifact
from idcf.inference.artifact import Artifact
from idcf.inference.from_factors import Biases, How, bring
from idcf.inference.known import known
from idcf.inference.manifest import Manifest, Wish
from idcf.inference.new_items import grow
from idcf.inference.onnx import export
from idcf.inference.predictor import Asked, Desk
from idcf.inference.why import explain, questions
from idcf.metrics.calibration import half_width
from idcf.models.registry import model_entry, require_option
from idcf.results import Explanation, Predicted, Question, Recommendations

Array = NDArray[np.float32]
_GROWING = Lock()  # two who add items at once would lose one another's


class _AtWork(NamedTuple):
    """All that answers are made of, replaced in one step: whoever has begun keeps theirs."""

    found: Artifact
    desk: Desk
    table: Interactions | None  # trained on; nothing of it is saved


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
        model_entry(model)
        self.wish = Wish(model, options, key_threshold, key_users, preset, seed, device)
        self._at_work: _AtWork | None = None

    def __repr__(self) -> str:
        what = f"{len(self._desk().ids):,} items" if self._at_work else "not fitted"
        return f"<Recommender {self.wish.model}, {what}>"

    def fit(
        self,
        interactions: Any,
        *,
        users: Any = None,
        items: Any = None,
        columns: Mapping[str, str] | None = None,
        implicit: bool | None = None,
        titles: Mapping[Any, str] | None = None,
        measure: bool = False,
        progress: bool = False,
        watcher: Callable[[str, Mapping[str, float]], None] | None = None,
    ) -> Self:
        """Train on a dataframe, a file or `Interactions`. `titles` names items by their ids.
        `users` and `items` are tables (or files) of what else is known of them: `user_id` or
        `item_id`, and a column for each feature; a column `title` of `items` names them.
        `measure` trains a second time, for the card's curve. A `watcher` hears of every epoch.
        Lists go by the rating to expect; with `implicit=True`, which leaves ratings aside, by how
        likely somebody is to take an item up, and hold far more of what they then do.
        """
        from idcf.training.fit import deploy

        table = read_interactions(interactions, columns=columns, implicit=implicit)
        more = beside(table, users, items)
        for option in more.features:
            require_option(self.wish.model, option)
        wish = replace(self.wish.plus(dict.fromkeys(more.features, True)), measure=measure)
        titled = named(table.items, more.titles if titles is None else titles)
        self._use(deploy(wish, more, titled, progress=progress, watcher=watcher), more.table)
        return self

    def partial_fit_items(
        self,
        interactions: Any,
        *,
        histories: Any = None,
        columns: Mapping[str, str] | None = None,
        titles: Mapping[Any, str] | None = None,
    ) -> Self:
        """Learn items that came after training from a few ratings (user_id, item_id, rating), or
        more of those that are known. Raters are known from `fit`, or by `histories`: a dict
        {user_id: history} or a table. Whoever is being answered meanwhile gets the old model."""
        with _GROWING:
            work = self._work()
            more = {"histories": histories, "columns": columns, "titles": titles}
            self._use(*grow(work.found, work.desk.reader, work.table, interactions, **more))
        return self

    def save(self, folder: str | Path) -> Path:
        """Write the model, its item ids and titles; see `idcf.inference.artifact`."""
        return artifact.save(self._fitted(), folder)

    def export_onnx(self, path: str | Path) -> Path:
        """Write history → vector → scores as one ONNX file; see `idcf.inference.onnx`."""
        return export(self._fitted(), path)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> Self:
        """Read what `save` wrote; refused with a reason where it is not whole."""
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}")
        return cls._of(artifact.load(folder), device)

    @classmethod
    def _of(cls, found: Artifact, device: str) -> Self:
        m = found.manifest
        known = {"preset": m.preset, "seed": m.seed, "device": device, **m.options}
        delta, chosen = m.data.key_threshold, m.data.chosen
        out = cls(m.model, key_threshold=delta, key_users=chosen, **known)
        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        found.model.to("cuda" if cuda else "cpu")
        out._use(found)
        return out

    @classmethod
    def from_factors(
        cls,
        items: Any,
        users: Any = None,
        *,
        item_ids: Sequence[Any],
        implicit: bool,
        item_bias: Any = None,
        user_bias: Any = None,
        mean: float = 0.0,
        scale: tuple[float, float] = (1.0, 5.0),
        titles: Mapping[Any, str] | None = None,
        reg: float = 0.5,
        alpha: float = 10.0,
    ) -> Self:
        """Put the new-user step on factors trained elsewhere: items [I, D], and where at hand
        users [U, D], to whom the prior of newcomers is fitted. `reg` is how much the prior weighs;
        `alpha` the confidence of an interaction, where no users are given. See
        `idcf.inference.from_factors`."""
        biases = Biases(item_bias, user_bias, mean)
        how = How(implicit, reg, alpha, scale)
        return cls._of(bring(items, users, item_ids, biases, how, titles), "cpu")

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
        require_count(n)
        if users is not None and (history is not None or features is not None):
            raise ConfigError("give either a history (and features) or users, not both")
        filters = desk.filters(candidates, exclude, filter_seen)
        if users is not None:
            return known(*self._work(), users, n, filters, std)
        if not is_many(history):
            return desk.one(Asked(desk.read(history, features), n, filters, std))
        who, reads = desk.reads(history, features)
        return desk.many(reads, n, filters, who, std)

    def predict(self, history: Any, items: Iterable[Any], *, features: Any = None) -> Array:
        """The score of each of the items for one newcomer."""
        return self._predict(history, items, features, sure=False)[0]

    def predict_interval(
        self, history: Any, items: Iterable[Any], level: float = 0.9, *, features: Any = None
    ) -> Predicted:
        """As `predict`, with the interval that the rating lies in with this probability."""
        scores, std = self._predict(history, items, features, sure=True)
        half = half_width(level) * std
        return Predicted(scores, std, scores - half, scores + half)

    def _predict(
        self, history: Any, items: Iterable[Any], features: Any, sure: bool
    ) -> tuple[Array, Array]:
        desk = self._desk()
        read = desk.read(history, features)
        report([read])
        return desk.predict(read, items, sure)

    def similar_items(self, item: Any, n: int = 10) -> Recommendations:
        """The items most like this one; the score is their likeness."""
        require_count(n)
        return self._desk().similar(item, n)

    def explain(self, history: Any, item: Any, *, features: Any = None) -> Explanation:
        """Why this item is recommended: which of their own items, which cohorts of key users."""
        desk = self._desk()
        return explain(desk, desk.read(history, features), desk.reader.row(item))

    def next_question(
        self, history: Any = None, n: int = 5, *, candidates: Any = None, features: Any = None
    ) -> list[Question]:
        """The items whose answer would tell most about a newcomer, the best first. Whether they
        know an item is guessed, unless `candidates` are given: items that they do know."""
        require_count(n)
        return questions(self._desk(), self._desk().read(history, features), n, candidates)

    @property
    def desk(self) -> Desk:
        """The fitted model with its ids and titles: what a server reads and answers with."""
        return self._desk()

    @property
    def about(self) -> Manifest:
        """What the model is, and what it was trained on."""
        return self._fitted().manifest

    def _use(self, found: Artifact, table: Interactions | None = None) -> None:
        self._at_work = _AtWork(found, Desk(found), table)

    def _work(self) -> _AtWork:
        if self._at_work is None:
            raise ConfigError("this recommender is not fitted; call fit, or use Recommender.load")
        return self._at_work

    def _fitted(self) -> Artifact:
        return self._work().found

    def _desk(self) -> Desk:
        return self._work().desk
