"""The abstract classes that every model is built from.

A class of this file is abstract. A class of any other file is final: it has no subclass, and it
overrides no method that is implemented here, except the hooks, which are marked with `@hook`. By
default a hook does nothing or, if a flag says whether the model has it, raises `ConfigError`.
A model scores items for users; it knows nothing of files, optimizers, metrics or HTTP.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy, deepcopy
from itertools import chain
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from idcf.errors import ColdUserError, ConfigError
from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.heads import Head
from idcf.models.layers.neighbors import Neighbors, SparseCorrection
from idcf.types import Batch, CohortWeights, Embeddings, History, LossTerms, Ragged, Users

HOOK_MARK = "_is_hook"  # the attribute that `hook` sets
DEVICE_NAMES = ("auto", "cpu", "cuda")
UserData = Literal["sums", "vectors", "rows"]  # in ascending order of what they tell of a user
Method = TypeVar("Method", bound=Callable[..., Any])


def resolve_device(name: str) -> torch.device:
    """Return the device of "cpu", "cuda", or "auto": a GPU if one is visible, else the CPU.

    Raises `ConfigError` for any other name, and for "cuda" if no GPU is visible.
    """
    if name not in DEVICE_NAMES:
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError("device 'cuda' was given, but no GPU is visible; use 'auto' or 'cpu'")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def hook(method: Method) -> Method:
    """Mark a method with a default that a final class may override."""
    setattr(method, HOOK_MARK, True)
    return method


class Model(nn.Module, ABC):
    """A function from users and items to scores, with its capabilities as flags.

    Attributes
    ----------
    inductive
        The model scores new users, whose id is -1.
    reads_history
        The scores depend on the users' histories.
    can_rank_catalog
        Scoring the whole catalogue for many users takes a reasonable time.
    reads_user_features
        The model is trained by gradient on user features, so every batch must carry them.
    has_uncertainty
        The model gives standard deviations of ratings: `predictive_std`.
    suggests_questions
        The model says which ratings of a new user it would learn most from: `question_gains`.
    accepts_new_items
        Items can be added after training: `with_item_ratings`.
    has_item_similarities
        The model knows how similar two items are: `item_similarities`, or by its item vectors.
    has_item_weights
        These similarities are weights, whose scale is that of the model.
    accepts_unseen_items
        Items that nobody has interacted with can be added after training: `with_n_items`.
    weighs_history
        The values of a history of implicit feedback are weights of its items.
    source
        How scores come about, as results report it: "posterior", "relation", "features" or
        "popular".
    user_data
        What the state of a trained model holds of single training users: "sums" over users and
        parameters of items alone, also "vectors" of users, or "rows" of the training tables.
    n_items
        Number of items in the catalogue.
    predicts_ratings
        The scores are on the scale of the ratings.
    predicts_probabilities
        The scores are probabilities that the user takes the item up.
    counts_without_history
        Without a history the scores are numbers of users, which compare with no other scores.
    trains_on_binary
        Training replaces ratings by 1.
    has_user_parameters
        An inductive model also has parameters of single training users, found by their ids.
    """

    inductive: ClassVar[bool]
    reads_history: ClassVar[bool] = True
    can_rank_catalog: ClassVar[bool] = True
    reads_user_features: ClassVar[bool] = False
    has_uncertainty: ClassVar[bool] = False
    suggests_questions: ClassVar[bool] = False
    accepts_new_items: ClassVar[bool] = False
    accepts_unseen_items: ClassVar[bool] = False
    has_item_similarities: ClassVar[bool] = False
    has_item_weights: ClassVar[bool] = False
    weighs_history: ClassVar[bool] = False
    predicts_probabilities: ClassVar[bool] = False
    source: ClassVar[str] = "relation"
    user_data: ClassVar[UserData] = "sums"
    n_items: int
    predicts_ratings: bool = True
    counts_without_history: bool = False
    trains_on_binary: bool = False
    has_user_parameters: bool = False

    @abstractmethod
    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score items int64 [M, K] for the users `owner` int64 [M], which are rows of `users`: [M,
        K]."""

    @abstractmethod
    def score_catalog(self, users: Users) -> Tensor:
        """Return the scores of every item of the catalogue for every user: [B, I]."""

    @hook
    @classmethod
    def user_data_with(cls, config: Any) -> UserData:
        """Return the `user_data` of a model with these options, an instance of its config class."""
        return cls.user_data

    @hook
    def discard_training_state(self) -> None:
        """Remove the tensors that training alone reads, so that they are not saved."""

    @hook
    def index_problem(self) -> str:
        """Return what is wrong with tensors that index others; "" if they can be used."""
        return ""

    @hook
    def loss_terms(self, batch: Batch) -> LossTerms | None:
        """Return the training loss of a model that has its own, instead of the preset's loss.

        The terms are scalars: sums over the rows of this process, divided by the rows of all
        processes. None, which is the default: the model is trained with the loss of the preset.
        """
        return None

    @hook
    def extra_loss_terms(self, batch: Batch) -> LossTerms:
        """Return terms that are added to the preset's loss, such as a penalty; none by default."""
        return {}

    @hook
    def predictive_std(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the standard deviation of the rating, noise included, of each pair: [M, K].

        Models with `has_uncertainty` implement it. The parameters are those of `forward`.
        """
        raise self._lacks("standard deviations of ratings")

    @hook
    def interval_ratio(self, confidence_level: float) -> float:
        """Return the width of the central interval of this level over that of a normal
        distribution of `predictive_std`; 1 by default."""
        return 1.0

    @hook
    def question_gains(self, users: Users, *, items_are_known: bool = False) -> Tensor:
        """Return how much a rating of each item is expected to reduce the variance: [B, I].

        Models with `suggests_questions` implement it. Unless `items_are_known`, so that the users
        can rate every item, the gain is weighted by how likely they know the item.
        """
        raise self._lacks("expected gains of ratings")

    @hook
    def with_item_ratings(self, users: Users, raters: Ragged[Tensor], item_rows: Tensor) -> Model:
        """Return a model with K items added or updated by ratings that training did not see.

        Models with `accepts_new_items` implement it. The model itself does not change.

        Parameters
        ----------
        raters
            K rows: for each item its raters, as rows of `users`, and their ratings.
        item_rows
            int64 [K]: the rows of the items; rows from `n_items` on are new.
        """
        raise self._lacks("items that are added after training")

    @hook
    def with_n_items(self, n_items: int) -> Model:
        """Return a model of a larger catalogue, whose new items nobody has interacted with.

        Models with `accepts_unseen_items` implement it. The model itself does not change.
        """
        raise self._lacks("items that are added without ratings")

    @hook
    def cohort_weights(self, users: Users) -> CohortWeights | None:
        """Return how much each cohort of key users resembles each user; None: no cohorts."""
        return None

    @hook
    def item_similarities(self, item_row: int) -> Tensor | None:
        """Return the similarity of every item to one item [I]; None: cosine of item vectors."""
        return None

    @hook
    def similarities_among(self, item_rows: Tensor) -> Tensor | None:
        """Return `item_similarities` of some items [..., K] to one another: [..., K, K].

        None, which is the default: they are computed item by item, which is slower.
        """
        return None

    @hook
    def item_popularity(self) -> Tensor | None:
        """Return the number of users who have each item [I], of a model whose scores grow in
        proportion to it; None: they do not, or the model does not know."""
        return None

    @hook
    def ranking_without_data(self) -> Tensor | None:
        """Return what orders the items for users without history and features [I], highest first.

        None, which is the default: the scores do.
        """
        return None

    def _lacks(self, capability: str) -> ConfigError:
        """Return the error of a model that is asked for a capability which it has not declared."""
        return ConfigError(
            f"{type(self).__name__} has no {capability}; use a model that has, such as idcf-bayes"
        )

    @hook
    def corrects_scores(self) -> bool:
        """Return whether scores are more than the product of two towers; False by default."""
        return False

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def ignores_user_ids(self) -> bool:
        """Whether scores depend on the history and features of a user, never on the id."""
        return self.inductive and not self.has_user_parameters

    def freeze(self) -> None:
        """Prepare the model for serving: evaluation mode and no gradients, so that caches work."""
        self.eval().requires_grad_(False)

    def nonfinite_tensor(self, largest: float | None = None) -> str | None:
        """Return the name of a tensor of the state that holds NaN or infinity, or a number beyond
        `largest`; None: none does."""
        for name, tensor in self.state_dict().items():
            if not tensor.is_floating_point():
                continue
            limit = torch.finfo(tensor.dtype).max if largest is None else largest
            if not bool((tensor.abs() <= limit).all()):
                return name
        return None

    def require_known_users(self, users: Users) -> None:
        """Raise `ColdUserError` if a transductive model is to score a new user (id -1)."""
        if not self.training and bool((users.ids < 0).any()):
            raise ColdUserError(
                f"{type(self).__name__} knows only the users it was trained on; wrap it as an "
                "idcf-* model, or use an inductive one ('bias', 'als', 'ease') for new users"
            )


class TwoTower(Model):
    """A model with the score head(user vector, item vector) + user bias + item bias + mean.

    Attributes
    ----------
    mean
        The constant added to every score: the mean rating, or 0.
    head
        The function of the two vectors, f_θ in the paper.
    masks_target_edge
        In training, the rating of a row is hidden from the item tower of that row.
    """

    has_item_similarities: ClassVar[bool] = True
    mean: float
    head: Head
    masks_target_edge: bool = False

    @abstractmethod
    def embed_users(self, users: Users) -> Embeddings:
        """Return the vectors [B, D] and biases [B] of the users."""

    @abstractmethod
    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return the vectors [M, K, D] and biases [M, K] of items [M, K], or [M, D] and [M] of
        items [M].

        `exclude_users` int64 [M] are users whose rating must not enter the embeddings of row m;
        only models with `masks_target_edge` read it.
        """

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score `items` [M, K] for the users `owner` [M]: [M, K]."""
        return self.score_embedded(self.embed_users(users), users, items, owner)

    @hook
    def score_embedded(
        self, user_embeddings: Embeddings, users: Users, items: Tensor, owner: Tensor
    ) -> Tensor:
        """Score items [M, K] or [M] for users [M] whose embeddings [B, D] are given."""
        masks = self.training and self.masks_target_edge
        exclude_users = users.ids.index_select(0, owner) if masks else None
        return self.score_rows(user_embeddings.take(owner), self.embed_items(items, exclude_users))

    def score_rows(self, user_embeddings: Embeddings, item_embeddings: Embeddings) -> Tensor:
        """Score the user of each row [M, D] against the items of that row [M, K, D] or [M, D]."""
        score: Tensor = self.head(user_embeddings.vector, item_embeddings.vector)
        user_bias, item_bias = user_embeddings.bias, item_embeddings.bias
        if item_bias.ndim > 1:
            user_bias = user_bias[:, None]
        return score + (user_bias + (item_bias + self.mean))

    def embed_catalog(self) -> Embeddings:
        """Return the vectors [I, D] and biases [I] of all items."""
        return self.embed_items(torch.arange(self.n_items, device=self.device))

    def score_all_pairs(self, user_embeddings: Embeddings, item_embeddings: Embeddings) -> Tensor:
        """Score every user [B, D] against every item [I, D]: [B, I]."""
        score = self.head.score_all_pairs(user_embeddings.vector, item_embeddings.vector)
        return score + user_embeddings.bias[:, None] + (item_embeddings.bias + self.mean)

    @hook
    def score_catalog(self, users: Users) -> Tensor:
        """Return the scores of every item for every user: [B, I]."""
        return self.score_all_pairs(self.embed_users(users), self.embed_catalog())


class CorrectedTwoTower(TwoTower):
    """A two-tower model whose scores are corrected by its errors on the nearest items.

    `idcf.models.layers.neighbors` has the formula. Without neighbors nothing is corrected.
    """

    neighbor_items: Tensor  # int64 [I, N]: see `Neighbors`; N = 0 without a correction
    neighbor_weights: Tensor  # [I, N]
    neighbor_scale: Tensor  # []: w

    def register_neighbors(self) -> None:
        """Register the buffers, without neighbors."""
        self.register_buffer("neighbor_items", torch.zeros(self.n_items, 0, dtype=torch.int64))
        self.register_buffer("neighbor_weights", torch.zeros(self.n_items, 0))
        self.register_buffer("neighbor_scale", torch.ones(()))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Give the neighbors the shapes of the state that is loaded."""
        for name in ("neighbor_items", "neighbor_weights"):
            if (loaded := state_dict.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_zeros(loaded.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def corrects_scores(self) -> bool:
        """Return whether the model has neighbors."""
        return self.neighbor_items.shape[1] > 0

    def score_embedded(
        self, user_embeddings: Embeddings, users: Users, items: Tensor, owner: Tensor
    ) -> Tensor:
        """Score items [M, K] or [M] for users [M] whose embeddings [B, D] are given."""
        scores = super().score_embedded(user_embeddings, users, items, owner)
        if not self.corrects_scores():
            return scores
        history = users.history
        of_history = super().score_embedded(user_embeddings, users, history.items, history.owner())
        return scores + self._correction(history, of_history).of_pairs(items, owner)

    def score_catalog(self, users: Users) -> Tensor:
        """Return the scores of every item for every user: [B, I]."""
        return self.correct_catalog(super().score_catalog(users), users.history)

    def correct_catalog(self, scores: Tensor, history: History) -> Tensor:
        """Return the scores [B, I] of two towers with the correction."""
        if not self.corrects_scores():
            return scores
        correction = self._correction(history, scores[history.owner(), history.items])
        return correction.add_to_catalog(scores)

    def _correction(self, history: History, scores: Tensor) -> SparseCorrection:
        """Return what is added to scores; `scores` [N] are those of the entries of the history."""
        neighbors = Neighbors(self.neighbor_items, self.neighbor_weights)
        residuals = self.neighbor_scale * (history.values - scores)
        return neighbors.correction(history, residuals, self.n_items)

    def with_neighbors(self, neighbors: Neighbors, scale: float = 1.0) -> Self:
        """Return a model with another correction that shares the other buffers; `scale` is w."""
        out = copy(self)
        out._buffers = dict(self._buffers)
        out.set_neighbors(neighbors, scale)
        return out

    def set_neighbors(self, neighbors: Neighbors, scale: float) -> None:
        """Replace the correction of this model; see `with_neighbors`."""
        self.neighbor_scale = torch.full_like(self.neighbor_scale, scale)
        self.neighbor_items = neighbors.items.to(self.neighbor_scale.device)
        self.neighbor_weights = neighbors.weights.to(self.neighbor_scale.device)


class EmbeddingTableModel(Model):
    """A transductive model with one embedding table for users and one for items."""

    inductive: ClassVar[bool] = False
    user_data: ClassVar[UserData] = "vectors"
    user_table: EmbeddingTable  # the meta latents P
    item_table: EmbeddingTable  # Q


class Backbone(EmbeddingTableModel, TwoTower):
    """A two-tower model with embedding tables: the models that `BackboneWrapper` can wrap.

    Attributes
    ----------
    item_tower_reads_users
        The embeddings of items depend on the vectors in `user_table`.
    """

    item_tower_reads_users: ClassVar[bool] = False

    @abstractmethod
    def user_tower(self, latent: Embeddings, users: Users) -> Embeddings:
        """Return user embeddings from latents [B, D], looked up or induced, and histories."""

    def embed_users(self, users: Users) -> Embeddings:
        """Return the user tower of the latents in `user_table`; new users raise `ColdUserError`."""
        self.require_known_users(users)
        latent: Embeddings = self.user_table(users.ids)
        return self.user_tower(latent, users)


class BackboneWrapper(TwoTower):
    """An inductive model that computes user latents from a trained backbone's key users.

    The wrapper copies the backbone, which stays as it is, and freezes both its embedding tables. It
    takes over the head f_θ, which is tuned with the wrapper's own parameters. `key_users` are the
    users whose latents the wrapper combines, each with an id of the backbone's table.
    """

    inductive: ClassVar[bool] = True
    user_data: ClassVar[UserData] = "vectors"
    has_adaption_stage: ClassVar[bool] = True  # False: the wrapper has no parameters to train
    backbone: Backbone
    key_latents: Tensor  # [key users, D + 1]: the meta latents p with the bias last, frozen
    mean_key_latent: Tensor  # [D + 1]

    def __init__(self, backbone: Backbone, key_users: Users) -> None:
        super().__init__()
        self.n_items = backbone.n_items
        self.mean = backbone.mean
        self.predicts_ratings = backbone.predicts_ratings
        self.masks_target_edge = backbone.masks_target_edge
        self.backbone = deepcopy(backbone)
        self.head: Head = self.backbone.head
        del self.backbone.head
        for table in (self.backbone.user_table, self.backbone.item_table):
            table.requires_grad_(False)
        with torch.no_grad():
            key: Embeddings = self.backbone.user_table(key_users.ids)
            latents = torch.cat([key.vector, key.bias[:, None]], -1)
            self.register_buffer("key_latents", latents)
            self.register_buffer("mean_key_latent", latents.mean(0))

    @hook
    def discard_training_state(self) -> None:
        """Remove the user table of the backbone, whose key users are in `key_latents`; vectors that
        the item tower reads stay."""
        table = self.backbone.user_table
        if not self.backbone.item_tower_reads_users:
            table.vector = nn.Parameter(table.vector[:0].clone(), requires_grad=False)
        # a new user, whose id is -1, reads row 0 and multiplies it by 0
        table.bias = nn.Parameter(torch.zeros_like(table.bias[:1]), requires_grad=False)

    @hook
    def adapted_scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the scores [M, K] of a batch and the induced vectors p̃ [B, D] behind them.

        Wrappers with an adaption stage implement it; its objective reads both.
        """
        raise self._lacks("adaption stage")

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return the backbone's item embeddings."""
        return self.backbone.embed_items(items, exclude_users)
