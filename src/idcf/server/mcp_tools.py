"""The tools of the Model Context Protocol: arguments in, short answers with titles out.

Knows one served model, no protocol and no event loop. Items may be given by title or by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from idcf.errors import DataError
from idcf.server import schemas as s
from idcf.server.service import RecommendationService

_MAX_HISTORY = 500  # items of a history, which a language model writes
_MAX_ITEMS = 50  # in an answer
_MAX_VALUES = 25  # of each attribute, in describe_model
_MAX_REASONS = 5
_DIGITS = 3

ItemName = Annotated[
    str | int,
    Meta(description="Title or id of an item, as search_items and next_question give them."),
]
ItemNames = Annotated[list[ItemName], Meta(max_length=_MAX_HISTORY)]
Count = Annotated[int, Meta(ge=1, le=_MAX_ITEMS, description="Maximum number of items.")]


class RatedItem(Struct, forbid_unknown_fields=True, frozen=True):
    """An item that the user rated or, for implicit feedback, took up."""

    item: ItemName
    rating: Annotated[
        float | None,
        Meta(description="On the scale of describe_model; left out for implicit feedback."),
    ] = None


class UserArguments(Struct, forbid_unknown_fields=True, frozen=True):
    """What a call says about the user; nothing is kept between calls."""

    history: Annotated[
        list[RatedItem],
        Meta(max_length=_MAX_HISTORY, description="All that is known of the user's taste so far."),
    ] = []
    features: s.UserFeatures = {}


class RecommendArguments(UserArguments, frozen=True):
    """Arguments of recommend."""

    n: Count = 5
    exclude: Annotated[ItemNames, Meta(description="Items never to recommend.")] = []
    where: s.AttributeFilter = {}
    quality: s.QualityField = None
    diversity: s.DiversityField = 0.0


class ExplainArguments(UserArguments, frozen=True, kw_only=True):
    """Arguments of explain."""

    item: ItemName


class NextQuestionArguments(UserArguments, frozen=True):
    """Arguments of next_question."""

    n: Count = 1
    exclude: Annotated[ItemNames, Meta(description="Items that the user does not know.")] = []


class SearchArguments(Struct, forbid_unknown_fields=True, frozen=True):
    """Arguments of search_items."""

    query: Annotated[
        str,
        Meta(max_length=200, description="Words of a title, or an id; empty: popular items."),
    ] = ""
    n: Count = 10


class NoArguments(Struct, forbid_unknown_fields=True, frozen=True):
    """No arguments."""


class TitledItem(Struct, frozen=True, omit_defaults=True):
    """An item; `title` is left out if it has none."""

    item_id: str
    title: str | None = None


class SuggestedItem(TitledItem, frozen=True):
    """A recommended item: the expected rating with its standard deviation, and how likely the user
    takes the item up, as far as the model knows them."""

    rating: float | None = None
    std: float | None = None
    probability: float | None = None


class TitledItems(Struct, frozen=True):
    """Items, best first."""

    items: list[TitledItem]


class SuggestedItems(Struct, frozen=True):
    """Recommended items, best first. `source` is posterior or relation for a list by history,
    features for one by features, and popular for what is popular with all users."""

    items: list[SuggestedItem]
    source: str


class WeightedReason(TitledItem, frozen=True, kw_only=True):
    """An item of the history; `effect` is the score with it minus the score without it."""

    effect: float


class ItemReasons(TitledItem, frozen=True, kw_only=True):
    """Why an item has its score: the strongest reasons first, then titles that similar users
    like."""

    score: float
    reasons: list[WeightedReason]
    liked_by_similar_users: list[str] = []


class ModelDescription(Struct, frozen=True, omit_defaults=True):
    """The model: what it recommends, and what a history must hold."""

    model: str
    n_items: int
    feedback: Annotated[
        str, Meta(description='"ratings", or "implicit": histories without ratings.')
    ]
    lowest_rating: float | None = None
    highest_rating: float | None = None
    can_ask_questions: bool = False
    can_explain: bool = False
    example_items: list[TitledItem] = []
    attributes: Annotated[
        dict[str, list[str]],
        Meta(description=f"Columns for `where`, each with its {_MAX_VALUES} most frequent values."),
    ] = {}
    n_attribute_values: Annotated[
        dict[str, int], Meta(description="How many values each of these columns has.")
    ] = {}


def describe_model(service: RecommendationService, arguments: NoArguments) -> ModelDescription:
    """Describe the model: its items, the rating scale, and what it can do."""
    info = service.model_info()
    levels = [] if info.implicit else info.rating_levels
    return ModelDescription(
        model=info.model,
        n_items=info.n_items,
        feedback="implicit" if info.implicit else "ratings",
        lowest_rating=min(levels, default=None),
        highest_rating=max(levels, default=None),
        can_ask_questions=info.can_suggest_questions,
        can_explain=info.can_explain,
        example_items=_titled(service.search_items("", 3).items),
        attributes=service.predictor.attribute_values(_MAX_VALUES),
        n_attribute_values=service.predictor.n_attribute_values,
    )


def search_items(service: RecommendationService, arguments: SearchArguments) -> TitledItems:
    """Find items by words of their titles; spelling mistakes are tolerated."""
    return TitledItems(_titled(service.search_items(arguments.query, arguments.n).items))


def recommend(service: RecommendationService, arguments: RecommendArguments) -> SuggestedItems:
    """Recommend items to the user whose history is given. Without a history: popular items."""
    request = s.RecommendRequest(
        **_user_fields(service, arguments),
        n=arguments.n,
        exclude=_item_ids(service, arguments.exclude),
        where=arguments.where,
        quality=arguments.quality,
        diversity=arguments.diversity,
    )
    items = service.recommend_batch([service.parse_request(request)])[0].items
    suggested = [
        SuggestedItem(
            x.item_id, x.title, *(_rounded(value) for value in (x.rating, x.std, x.probability))
        )
        for x in items
    ]
    return SuggestedItems(suggested, items[0].source if items else "popular")


def explain(service: RecommendationService, arguments: ExplainArguments) -> ItemReasons:
    """Say which items of the history raise or lower the score of one item."""
    item = _item_ids(service, [arguments.item])[0]
    body = service.explain(s.ExplainRequest(item_id=item, **_user_fields(service, arguments)))
    reasons = [
        WeightedReason(x.item_id, x.title, effect=round(x.effect, _DIGITS))
        for x in body.reasons[:_MAX_REASONS]
    ]
    liked = dict.fromkeys(title for cohort in body.cohorts for title in cohort.liked_titles)
    return ItemReasons(
        body.item_id,
        body.title,
        score=round(body.score, _DIGITS),
        reasons=reasons,
        liked_by_similar_users=list(liked)[:_MAX_REASONS],
    )


def next_question(service: RecommendationService, arguments: NextQuestionArguments) -> TitledItems:
    """Choose the items that the user should be asked to rate next, the most informative first."""
    request = s.NextQuestionRequest(
        **_user_fields(service, arguments),
        n=arguments.n,
        exclude=_item_ids(service, arguments.exclude),
    )
    return TitledItems(_titled(service.next_question(request).items))


@dataclass(frozen=True)
class ToolSpec:
    """A tool: a function of the served model and of arguments of one type."""

    function: Callable[[RecommendationService, Any], Struct]
    arguments_type: type[Struct]
    result_type: type[Struct]

    @property
    def name(self) -> str:
        """Name of the tool: that of the function."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """What the tool does."""
        return self.function.__doc__ or ""

    def parse(self, arguments: Any) -> Any:
        """Return arguments of the tool's type; DataError: they are not valid."""
        try:
            return msgspec.convert(arguments, self.arguments_type)
        except msgspec.ValidationError as error:
            raise DataError(f"arguments of {self.name}: {error}") from None


TOOLS = {
    x.name: x
    for x in (
        ToolSpec(describe_model, NoArguments, ModelDescription),
        ToolSpec(search_items, SearchArguments, TitledItems),
        ToolSpec(next_question, NextQuestionArguments, TitledItems),
        ToolSpec(recommend, RecommendArguments, SuggestedItems),
        ToolSpec(explain, ExplainArguments, ItemReasons),
    )
}


def json_schema(struct_type: type[Struct]) -> dict[str, Any]:
    """Return the JSON schema of a type, an object at the root as the protocol wants it."""
    (_,), definitions = msgspec.json.schema_components([struct_type], ref_template="#/$defs/{name}")
    root = definitions.pop(struct_type.__name__)
    return {**root, "$defs": definitions} if definitions else root


def _user_fields(service: RecommendationService, arguments: UserArguments) -> dict[str, Any]:
    """Return the fields of a `UserRequest` for the history and the features of a call."""
    ids = _item_ids(service, [x.item for x in arguments.history])
    history = [
        s.HistoryItem(item, x.rating) for item, x in zip(ids, arguments.history, strict=True)
    ]
    return {"history": history, "features": arguments.features}


def _item_ids(service: RecommendationService, names: Sequence[str | int]) -> list[Any]:
    """Return the id of each item that is given by id or title."""
    return [service.predictor.item_ids[service.title_index.resolve(str(x))] for x in names]


def _titled(items: Iterable[s.ItemRef]) -> list[TitledItem]:
    """Return items with nothing but id and title."""
    return [TitledItem(x.item_id, x.title) for x in items]


def _rounded(value: float | None) -> float | None:
    """Return a number with few digits; None stays None."""
    return None if value is None else round(value, _DIGITS)
