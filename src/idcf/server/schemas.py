"""JSON bodies of the HTTP interface and their limits; msgspec validates and encodes them.

A request may give an id as text or as a number; a response always gives it as text. A request with
an unknown field is rejected. The docstrings and descriptions below are published in /openapi.json.
Types that are created for every request have gc=False: they cannot hold reference cycles, and the
garbage collector then skips them.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct, json

from idcf.results import Basis

MAX_HISTORY_ITEMS = 5_000  # items of the history in one request
MAX_ITEM_IDS = 5_000  # ids in `exclude` or `candidates`
MAX_PREDICT_ITEMS = 1_000  # ids in one /v1/predict request
MAX_RESULTS = 500  # `n` of /v1/recommend
MAX_QUESTIONS = 50  # `n` of /v1/next-question
MAX_LISTED_ITEMS = 100  # `n` of the GET routes
MAX_ATTRIBUTE_VALUES = 100  # of each column, in /v1/model
MAX_BODY_BYTES = 1 << 19

TextId = Annotated[str, Meta(min_length=1, max_length=256, description="Id of an item.")]
ItemId = TextId | int | float


Timestamp = Annotated[
    int | float,
    Meta(
        description="When the user took the item up, in seconds since 1970: of all items of the "
        "history or of none. It matters with `recency` only."
    ),
]


class HistoryItem(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """One item of a user's history; `rating` is required if the model was trained on ratings."""

    item_id: ItemId
    rating: float | None = None
    timestamp: Timestamp | None = None


HistoryItems = Annotated[
    list[HistoryItem],
    Meta(
        max_length=MAX_HISTORY_ITEMS,
        description="Items that the new user rated or interacted with. The order matters with "
        "`recency` only: without timestamps, it is oldest first.",
    ),
]
ItemIds = Annotated[list[ItemId], Meta(max_length=MAX_ITEM_IDS)]
UserFeatures = Annotated[
    dict[str, str | int | float | None],
    Meta(
        max_length=100,
        description="Features of the user by name, if the model was trained with user features.",
    ),
]
CountField = Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="Maximum number of items.")]
QualityField = Annotated[
    Annotated[float, Meta(ge=0, le=1)] | None,
    Meta(
        description="For ratings: from 0, what the user will most likely take up, to 1, the "
        "highest expected ratings. null: the default, which balances both."
    ),
]
DiversityField = Annotated[
    float,
    Meta(
        ge=0,
        le=1,
        description="From 0, the best items, to 1, the best item and then those least similar to "
        "the ones before.",
    ),
]
DampingField = Annotated[
    float,
    Meta(
        ge=0,
        le=1,
        description="From 0 to 1: divide the probability that an item is taken up by this power "
        "of its popularity.",
    ),
]
RecencyField = Annotated[
    Annotated[float, Meta(ge=0, lt=1)] | Literal["fitted"],
    Meta(
        description="From 0 to below 1: an item of the history with k later ones weighs "
        '1 / (1 + k)^recency. 0: the order does not matter. "fitted": the value that training '
        "chose."
    ),
]
AttributeValue = str | bool | int | float
AttributeFilter = Annotated[
    dict[str, AttributeValue | Annotated[list[AttributeValue], Meta(max_length=100)]],
    Meta(
        max_length=20,
        description="Recommend only items that have, in each of these columns, the value or one of "
        "the values, if the model was trained with item features; empty: any item.",
        examples=[{"genre": ["Comedy", "Drama"]}],
    ),
]
UnknownItems = Annotated[
    list[str], Meta(description="Ids in the request's history that the model does not know.")
]
IgnoredRatings = Annotated[
    bool,
    Meta(
        description="True if the request's history has ratings, which a model of implicit feedback "
        "ignores."
    ),
]
_EXAMPLE_HISTORY_ITEM = {"item_id": "50", "rating": 5}


class UserRequest(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """What every request says about the new user."""

    history: HistoryItems = []
    features: UserFeatures = {}


class RecommendRequest(UserRequest, frozen=True):
    """Request of the best items for a new user."""

    n: CountField = 10
    exclude: Annotated[ItemIds, Meta(description="Items never to recommend.")] = []
    candidates: Annotated[
        ItemIds, Meta(description="Recommend only these items; empty: any item.")
    ] = []
    quality: QualityField = None
    diversity: DiversityField = 0.0
    damping: DampingField = 0.0
    recency: RecencyField = 0.0
    where: AttributeFilter = {}


class EmbedRequest(UserRequest, frozen=True):
    """Request of the embedding of a new user."""


class PredictRequest(UserRequest, frozen=True, kw_only=True):
    """Request of the scores of given items for a new user."""

    item_ids: Annotated[list[ItemId], Meta(min_length=1, max_length=MAX_PREDICT_ITEMS)]
    if_shown: Annotated[
        bool,
        Meta(
            description="False: the rating of an item that the user chooses. True: that of an item "
            "which is put before the user."
        ),
    ] = False
    confidence_level: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(
            description="Share of ratings that lie in the interval from `low` to `high`, such as "
            "0.9; null: no intervals. It needs a model of ratings with a posterior."
        ),
    ] = None


class ExplainRequest(UserRequest, frozen=True, kw_only=True):
    """Request of the reasons for the score of an item."""

    item_id: ItemId
    quality: QualityField = None
    damping: DampingField = 0.0
    recency: RecencyField = 0.0


class NextQuestionRequest(UserRequest, frozen=True):
    """Request of the items that a new user should be asked to rate next."""

    n: Annotated[int, Meta(ge=1, le=MAX_QUESTIONS, description="Maximum number of items.")] = 1
    exclude: Annotated[ItemIds, Meta(description="Items never to ask about.")] = []


class ItemRef(Struct, frozen=True, gc=False):
    """Id and title of an item."""

    item_id: str
    title: str | None


class RecommendationBody(ItemRef, frozen=True):
    """A recommended item. `score` orders a list by history or features; `probability` says how
    likely the user takes the item up, `rating` and `std` what rating is expected if they do, with
    its standard deviation, and `rating_if_shown` what rating is expected if the item is put before
    them, each null if the model does not know; `source` is posterior, relation, features or
    popular."""

    score: float
    std: float | None
    rank: int
    source: str
    probability: float | None
    rating: float | None
    rating_if_shown: float | None


class ItemScore(ItemRef, frozen=True):
    """Score of an item for a new user: the expected rating, if the model predicts ratings."""

    score: float


class PredictedItem(ItemScore, frozen=True):
    """Score of an item for a new user. With `confidence_level`, a rating has a standard deviation
    and lies from `low` to `high` with this probability; otherwise these are null."""

    std: float | None = None
    low: float | None = None
    high: float | None = None


class ReasonBody(ItemRef, frozen=True):
    """An item of the history; `effect` is the score with it minus the score without it."""

    rating: float
    effect: float


class CohortBody(Struct, frozen=True):
    """A group of at least five key users that influenced the score; `weight` is its share of the
    attention, `liked_titles` name the items that its users rate more often than other key users."""

    size: int
    weight: float
    liked_titles: list[str]


class QuestionBody(ItemRef, frozen=True):
    """An item to ask a new user about; `expected_gain` is the expected reduction of the variance of
    the user's ratings or, for a model of clicks, the bits that the answer tells."""

    expected_gain: float


Item = TypeVar("Item")


class UserItems(Struct, Generic[Item], frozen=True, gc=False):
    """Items in answer to a `UserRequest`, and what of its history was not used."""

    items: list[Item]
    unknown_items: UnknownItems
    ignored_ratings: IgnoredRatings


class RecommendationList(UserItems[RecommendationBody], frozen=True):
    """Recommended or similar items, best first."""

    basis: Annotated[
        Basis | None,
        Meta(
            description="What the list was made from: `history`, the known items of the user; "
            "without any, `features` of the user; without those, or if the model reads neither, "
            "`popularity`, and then the order is not that of `score`. null: similar items."
        ),
    ]


class ItemScoreList(UserItems[PredictedItem], frozen=True):
    """Scores of the requested items, in the order of the request."""


class QuestionList(UserItems[QuestionBody], frozen=True):
    """Items to ask a new user about, the most informative first."""


class NewUserEmbedding(Struct, frozen=True):
    """Embedding of a new user."""

    embedding: list[float]
    unknown_items: UnknownItems
    ignored_ratings: IgnoredRatings


class ExplanationBody(ItemScore, frozen=True):
    """Score of an item for a new user, and the history items and key users it comes from."""

    std: float | None
    reasons: list[ReasonBody]
    cohorts: list[CohortBody]
    unknown_items: UnknownItems
    ignored_ratings: IgnoredRatings


class ItemList(Struct, frozen=True):
    """Items that match a search text, best match first."""

    items: list[ItemRef]


class ModelInfo(Struct, frozen=True):
    """The served model. `rating_levels` are the ratings in the training data, [1] for implicit
    feedback; `version` is the version of idcf that trained the model."""

    model: str
    n_items: int
    implicit: bool
    rating_levels: list[float]
    can_explain: bool
    can_suggest_questions: bool
    can_choose_quality: bool
    can_diversify: bool
    can_damp_popularity: bool
    can_weigh_recency: bool
    fitted_recency: Annotated[
        float | None, Meta(description='What "fitted" stands for; null: none was fitted.')
    ]
    attributes: Annotated[
        list[str], Meta(description="Columns that `where` of a request may name.")
    ]
    attribute_values: Annotated[
        dict[str, list[str]],
        Meta(
            description=f"Values of each of these columns, the {MAX_ATTRIBUTE_VALUES} that most "
            "items have if there are more."
        ),
    ]
    version: str
    training_data_sha256: str
    user_data: Annotated[
        Literal["sums", "vectors", "rows"],
        Meta(description="What the model holds of single training users; see the model card."),
    ]


class ServerStatus(Struct, frozen=True):
    """State of the server: alive or ready."""

    status: str


class ErrorDetail(Struct, frozen=True):
    """What is wrong with a request, and what to do."""

    detail: str


EXAMPLES: dict[type, dict[str, Any]] = {
    RecommendRequest: {"history": [_EXAMPLE_HISTORY_ITEM, {"item_id": 172, "rating": 4}], "n": 10},
    EmbedRequest: {"history": [_EXAMPLE_HISTORY_ITEM]},
    PredictRequest: {"history": [_EXAMPLE_HISTORY_ITEM], "item_ids": ["1", "172"]},
    ExplainRequest: {"history": [_EXAMPLE_HISTORY_ITEM], "item_id": "172"},
    NextQuestionRequest: {"history": [_EXAMPLE_HISTORY_ITEM], "n": 1},
}
encode_json = json.Encoder().encode
