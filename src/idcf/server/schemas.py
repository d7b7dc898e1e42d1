"""What comes in and goes out over HTTP, and how much of it. Plain data; msgspec checks it once.

An id may come as text or as a number; it always goes out as text. An unknown key is refused.
What is made by the thousand is made with gc=False: it cannot hold cycles, so nobody need look.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, json

HISTORY, CHOICE, BEST, ITEMS = 5_000, 5_000, 500, 1_000  # the most of each in one request
BODY = 1 << 19  # bytes

Text = Annotated[str, Meta(min_length=1, max_length=256, description="An item's id.")]
Id = Text | int | float


class Said(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """One item of a history. `rating` may be absent where the model knows no ratings."""

    item_id: Id
    rating: float | None = None


History = Annotated[
    list[Said], Meta(max_length=HISTORY, description="What the newcomer did, in any order.")
]
Ids = Annotated[list[Id], Meta(max_length=CHOICE)]
Features = Annotated[
    dict[str, str | int | float | None],
    Meta(max_length=100, description="What else they say of themselves, by name."),
]
Best = Annotated[int, Meta(ge=1, le=BEST, description="How many, at most.")]
_EXAMPLE = {"item_id": "50", "rating": 5}


class Ask(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A newcomer, and what they may be shown."""

    history: History = []
    n: Best = 10
    exclude: Annotated[Ids, Meta(description="Never these.")] = []
    candidates: Annotated[Ids, Meta(description="Only these; empty: all there are.")] = []
    features: Features = {}


class Item(Struct, frozen=True, gc=False):
    """`std` is null where the model has no posterior."""

    item_id: str
    title: str | None
    score: float
    std: float | None
    rank: int
    source: str


class Answer(Struct, frozen=True, gc=False):
    items: list[Item]
    unknown_items: list[str]


class Person(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A newcomer and nothing else."""

    history: History = []
    features: Features = {}


class Vector(Struct, frozen=True):
    vector: list[float]
    unknown_items: list[str]


class Pairs(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A newcomer, and items to be scored for them."""

    items: Annotated[list[Id], Meta(min_length=1, max_length=ITEMS)]
    history: History = []
    features: Features = {}


class Score(Struct, frozen=True):
    item_id: str
    title: str | None
    score: float


class Scores(Struct, frozen=True):
    items: list[Score]
    unknown_items: list[str]


class Why(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A newcomer, and the item that wants explaining."""

    item_id: Id
    history: History = []
    features: Features = {}


class Reason(Struct, frozen=True):
    """An item of their own; `effect` is the score with it less the score without it."""

    item_id: str
    title: str | None
    rating: float
    effect: float


class Cohort(Struct, frozen=True):
    """Key users who were listened to, never fewer than five."""

    size: int
    weight: float
    likes: list[str]


class Because(Struct, frozen=True):
    item_id: str
    title: str | None
    score: float
    std: float | None
    reasons: list[Reason]
    cohorts: list[Cohort]
    unknown_items: list[str]


class Next(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A newcomer who may be asked something, but not about the items to skip."""

    history: History = []
    n: Annotated[int, Meta(ge=1, le=50)] = 1
    exclude: Ids = []
    features: Features = {}


class Question(Struct, frozen=True):
    item_id: str
    title: str | None
    gain: float


class Questions(Struct, frozen=True):
    items: list[Question]
    unknown_items: list[str]


class Named(Struct, frozen=True):
    item_id: str
    title: str | None


class Found(Struct, frozen=True):
    items: list[Named]


class Model(Struct, frozen=True):
    """What is being served, for a page that wants to fit it."""

    model: str
    items: int
    implicit: bool
    levels: list[float]  # the ratings that occur; a single 1 for implicit feedback
    explains: bool
    asks: bool
    version: str
    trained_on: str  # SHA-256 of the table


class State(Struct, frozen=True):
    status: str


class Problem(Struct, frozen=True):
    """What is wrong with a request, and the way out."""

    detail: str


EXAMPLES: dict[type, dict[str, Any]] = {
    Ask: {"history": [_EXAMPLE, {"item_id": 172, "rating": 4}], "n": 10},
    Person: {"history": [_EXAMPLE]},
    Pairs: {"history": [_EXAMPLE], "items": ["1", "172"]},
    Why: {"history": [_EXAMPLE], "item_id": "172"},
    Next: {"history": [_EXAMPLE], "n": 1},
}
encode = json.Encoder().encode
