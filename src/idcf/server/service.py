"""One model at work: a question as it came in goes in, the answer as it goes out comes out.

Knows neither time nor HTTP. Everything here may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from idcf.data.history_reader import Read
from idcf.data.side_tables import told
from idcf.data.title_search import Titles
from idcf.errors import ConfigError, DataError
from idcf.inference.predictor import Asked, Desk, Filters, Recommendations
from idcf.inference.why import explain, questions
from idcf.recommender import Recommender
from idcf.server import schemas as s

_DIGITS = 5  # beyond it scores differ with the size of a pass, as sums round differently
_ALL = Filters()


@dataclass(frozen=True)
class Serving:
    """A recommender, and what it can do, found out by asking it once."""

    recommender: Recommender
    desk: Desk
    titles: Titles
    explains: bool
    asks: bool

    @classmethod
    def of(cls, recommender: Recommender) -> Self:
        desk = recommender.desk
        first = desk.one(Asked(desk.reader.one(None), 2))  # refuses a model of known users too
        told = {first[0].item_id: desk.world.levels[-1]} if first else {}
        desk.answer([Asked(desk.reader.one(told), 1)] * 8)  # the first pass is slow; not a guest's
        return cls(
            recommender,
            desk,
            Titles(desk.ids, desk.titles),
            explains=bool(first) and _able(lambda: recommender.explain(told, first[-1].item_id)),
            asks=_able(lambda: recommender.next_question(told, 1)),
        )

    def model(self) -> s.Model:
        world, about = self.desk.world, self.recommender.about
        return s.Model(
            model=about.model,
            items=len(self.desk.ids),
            implicit=world.implicit,
            levels=list(world.levels),
            explains=self.explains,
            asks=self.asks,
            version=about.versions.get("idcf", ""),
            trained_on=about.data.sha256,
        )

    def read(self, ask: s.Ask) -> Asked:
        """Ids become rows, or an error says which cannot."""
        read = self._person(ask)
        if not ask.exclude and not ask.candidates:
            return Asked(read, ask.n, _ALL, True)
        if ask.candidates and not any(map(self.knows, ask.candidates)):
            _strange("candidates", ask.candidates[0], len(ask.candidates))
        filters = self.desk.filters(ask.candidates or None, ask.exclude or None)
        return Asked(read, ask.n, filters, True)

    def answer(self, asked: Sequence[Asked]) -> list[s.Answer]:
        """One pass over people who were read here."""
        return [_listed(x) for x in self.desk.answer(asked)]

    def knows(self, item: Any) -> bool:
        return self.desk.reader.knows(item)

    def items(self, query: str, n: int) -> s.Found:
        """Items by what is typed; the best liked where nothing is."""
        if not query.strip():
            best = self.desk.one(Asked(self.desk.reader.one(None), n))
            return s.Found([s.Named(str(x.item_id), x.title) for x in best])
        ids, titles = self.desk.ids, self.desk.titles
        return s.Found([s.Named(str(ids[r]), titles[r]) for r in self.titles.search(query, n)])

    def similar(self, item: str, n: int) -> s.Answer:
        self._require([item], "item_id")
        return _listed(self.recommender.similar_items(item, n))

    def embed(self, person: s.Person) -> s.Vector:
        read = self._person(person)
        vector = self.desk.embed([read])[0].tolist()
        return s.Vector([round(x, _DIGITS) for x in vector], _texts(read.unknown))

    def predict(self, asked: s.Pairs) -> s.Scores:
        self._require(asked.items, "items")
        desk, read = self.desk, self._person(asked)
        rows = [desk.reader.row(x) for x in asked.items]
        scores = desk.index.one(read.rows, read.values, read.features)[rows].tolist()
        found = [
            s.Score(str(desk.ids[row]), desk.titles[row], round(score, _DIGITS))
            for row, score in zip(rows, scores, strict=True)
        ]
        return s.Scores(found, _texts(read.unknown))

    def explain(self, why: s.Why) -> s.Because:
        self._require([why.item_id], "item_id")
        read = self._person(why)
        found = explain(self.desk, read, self.desk.reader.row(why.item_id))
        return s.Because(
            item_id=str(found.item_id),
            title=found.title,
            score=round(found.score, _DIGITS),
            std=_rounded(found.std),
            reasons=[
                s.Reason(str(x.item_id), x.title, x.rating, round(x.effect, _DIGITS))
                for x in found.reasons
            ],
            cohorts=[
                s.Cohort(x.size, round(x.weight, _DIGITS), list(x.likes)) for x in found.cohorts
            ],
            unknown_items=_texts(read.unknown),
        )

    def next_question(self, person: s.Next) -> s.Questions:
        """What to ask them. Items to skip are asked for in excess and dropped."""
        read = self._person(person)
        skip = {str(x) for x in person.exclude}
        found = questions(self.desk, read, person.n + len(skip))
        kept = [x for x in found if str(x.item_id) not in skip][: person.n]
        items = [s.Question(str(x.item_id), x.title, round(x.gain, _DIGITS)) for x in kept]
        return s.Questions(items, _texts(read.unknown))

    def _person(self, who: s.Ask | s.Person | s.Pairs | s.Why | s.Next) -> Read:
        read = self._history(who.history)
        return told(read, self.desk.features, who.features) if who.features else read

    def _history(self, history: Sequence[s.Said]) -> Read:
        if history and not any(self.knows(x.item_id) for x in history):
            _strange("history", history[0].item_id, len(history))
        usual = 1.0 if self.desk.world.implicit else None
        return self.desk.reader.pairs(
            [(x.item_id, usual if x.rating is None else x.rating) for x in history]
        )

    def _require(self, items: Sequence[Any], what: str) -> None:
        for item in items:
            if not self.knows(item):
                _strange(what, item)


def _strange(what: str, item: Any, of: int = 1) -> NoReturn:
    """As the reader would refuse it, but without a search for the nearest name: a stranger could
    keep the server busy with that."""
    are = "is" if of == 1 else f"and the {of - 1} others are"
    raise DataError(f"{what}: {item!r:.80} {are} unknown here; /v1/items?query= finds ids")


def _listed(found: Recommendations) -> s.Answer:
    items = [
        s.Item(str(id_), title, round(score, _DIGITS), _rounded(std), rank, source)
        for id_, score, rank, title, std, source in found
    ]
    return s.Answer(items, _texts(found.unknown_items))


def _texts(ids: Iterable[Any]) -> list[str]:
    return [str(x) for x in ids]


def _rounded(std: float | None) -> float | None:
    return None if std is None else round(std, _DIGITS)


def _able(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ConfigError:
        return False
    return True
