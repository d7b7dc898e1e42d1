"""Options of the models, which know nothing of torch: `idcf models` lists them quickly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from idcf.config import (
    Count,
    CountOrZero,
    DegreesOfFreedom,
    Depth,
    Dropout,
    Lengths,
    PseudoCount,
    Ridge,
    Scale,
    Share,
    Size,
    SizeOrZero,
    Sizes,
    Weight,
)

DEFAULT_USER_SHRINKAGE = 5.0  # pseudo-count of residuals of 0 in a user's bias
DEFAULT_ITEM_SHRINKAGE = 3.0  # pseudo-count of residuals of 0 in an item's bias
LARGE_CATALOG = 50_000  # items: every block takes 1 kB and 5 ns of a list for each

AttentionKind = Literal["dot", "additive", "literal"]
RelationStart = Literal["mean", "glorot"]


@dataclass(frozen=True, kw_only=True)
class PopularityConfig:
    """The popularity model has no options."""


@dataclass(frozen=True, kw_only=True)
class BiasConfig:
    """Options of the bias model."""

    shrinkage: PseudoCount = (
        DEFAULT_USER_SHRINKAGE  # pseudo-count of residuals of 0 in a user's bias
    )
    item_shrinkage: PseudoCount = (
        DEFAULT_ITEM_SHRINKAGE  # pseudo-count in an item's bias; not searched
    )


@dataclass(frozen=True, kw_only=True)
class ItemItemConfig:
    """Options of item-kNN and EASE.

    `reg` is the ridge λ of EASE, and the pseudo-count that shrinks the similarities of item-kNN.
    `neighbors` is the number of weights stored per item, the largest. `shrinkage` is that of the
    user bias (`BiasConfig`). `normalize`: item-kNN on ratings takes a weighted mean, not a sum.
    `ratings`: with "residuals" the scores are expected ratings. With "scaled" they order lists: an
    interaction counts (r - lowest) / (highest - lowest) in the history and as a target, so that
    items are ranked by how likely they are taken up and liked.
    """

    reg: Weight = 100.0  # EASE: ridge; item-kNN: pseudo-count that shrinks similarities
    neighbors: Count = 50  # weights kept per item, the largest
    shrinkage: PseudoCount = DEFAULT_USER_SHRINKAGE  # of the user bias, see `BiasConfig`
    normalize: bool = True  # item-kNN on ratings: a weighted mean instead of a weighted sum
    ratings: Literal["residuals", "scaled"] = "residuals"  # what a rating counts


@dataclass(frozen=True, kw_only=True)
class SlimConfig(ItemItemConfig):
    """Options of SLIM: `reg` weighs Σ w² / 2, and an item has weights on its `neighbors` alone."""

    l1_reg: Weight = 1.0  # weighs Σ w


@dataclass(frozen=True, kw_only=True)
class FoldInConfig:
    """Options of ALS."""

    embedding_size: Size = 16  # D
    reg: Ridge = 10.0  # λ
    alpha: Ridge = 10.0  # α: confidence of an interaction of implicit feedback
    epochs: Count = 15  # alternations between users and items
    shrinkage: PseudoCount = DEFAULT_USER_SHRINKAGE  # of the user bias, see `BiasConfig`
    popularity_weight: Weight = 0.0  # of log(1 + n_i), added to scores of implicit feedback


@dataclass(frozen=True, kw_only=True)
class BayesConfig:
    """Options of idcf-bayes."""

    embedding_size: SizeOrZero = 20  # D
    blocks: Depth | None = None  # T; None: 4, or 1 from `LARGE_CATALOG` items on
    sweeps: Count = 160  # of the chain after the burn-in, divided among the blocks
    burn_in: CountOrZero = 40  # sweeps that are discarded
    rank: Size = 30  # R: directions in which the prior distinguishes histories
    shrinkage: PseudoCount = 50.0  # pseudo-count of users in the regression of latents on features
    noise_dof: DegreesOfFreedom = 8.0  # ν of the Student t noise of users in training
    history_lengths: Lengths = (1, 29)  # of the histories that the prior is fitted on
    user_features: bool = False  # the prior of a user reads user features
    item_features: bool = False  # the prior of an item reads item features
    neighbors: CountOrZero = 50  # N: nearest items that correct scores, where held-out users gain
    validation: Share = 0.05  # least share of users, the lightest, who calibrate intervals

    def n_blocks(self, n_items: int) -> int:
        """Return T; a larger number costs time and memory and hardly improves the scores."""
        if self.blocks is not None:
            return self.blocks
        return 1 if n_items >= LARGE_CATALOG else 4

    def n_neighbors(self, n_items: int) -> int:
        """Return N: the scores of a large catalogue are products of vectors alone."""
        return 0 if n_items >= LARGE_CATALOG else self.neighbors


@dataclass(frozen=True, kw_only=True)
class OddsConfig:
    """Options of idcf-odds."""

    rank: Size = 32  # singular directions of the spectral relation
    degree_smoothing: Weight = 1.0  # added to degrees, against directions of isolated users
    reg: Ridge = 100.0  # ridge of EASE
    neighbors: Count = 200  # EASE weights kept per item
    support: Weight = 5.0  # pseudo-count that shrinks cosines
    cosine_neighbors: Count = 50  # cosines kept per item
    power: Weight = 1.5  # p
    min_lift: Scale = 0.1  # lower bound of the lift in the spectral relation
    similarity_scale: Scale = 0.1  # unit of the similarity before its log(1 + x)
    prior: Weight = 2.0  # pseudo-count of items that shrinks the features of a history
    n_next_items: Count = 10  # number of items that "the next few" are
    history_lengths: Lengths = (0, 19)  # of the histories that the logit is fitted on
    holdout_order: Literal["random", "last"] = "random"  # which items of a user are "the next few"
    folds: Count = 5  # the logit is fitted on users whose fold the item statistics exclude
    max_fit_users: Count = 1000  # users that the logit is fitted on; fewer folds may suffice
    negatives: Count = 100  # random items per user in the fit
    ridge: Ridge = 1.0  # of the logit


@dataclass(frozen=True, kw_only=True)
class TakeUpConfig:
    """Options of idcf-takeup. None: chosen on held-out users."""

    # which items an item is regressed on; "cosines": none, the weights are shrunk cosines
    regression: Literal["all", "nearest", "cosines"] | None = None
    reg: Ridge | None = None  # λ of the regression
    shown_items: Weight | None = None  # l: expected part of a history; of the regression on all
    count_reg: Weight | None = None  # a: penalty per user of an item; of that on the nearest
    power: Weight | None = None  # p of the weights of the regression
    spectral_weight: Weight | None = None  # c of the relation of low rank
    neighbors: Count = 1000  # weights stored per item
    max_dense_items: CountOrZero = 6000  # above, no item is regressed on all others
    local_neighbors: Count = 50  # nearest items that an item is regressed on
    local_pairs: Count = 300  # entries of XᵀX kept per item for that
    history_lengths: Lengths = (1, 25)  # of half of the held-out histories
    n_next_items: Count = 10  # P is the probability to be among so many next items
    max_held_out_users: Count = 1000


@dataclass(frozen=True, kw_only=True)
class MatrixFactorizationConfig:
    """Options of PMF and NNMF."""

    embedding_size: Size = 16  # D
    plain_size: Size = 10  # of the part of the latents that "concat" does not multiply
    head: Literal["dot", "perceptron", "concat"] = "dot"  # f: p·q or a network
    hidden: Sizes = (32, 32)  # layer sizes of the head
    center: bool = True  # add the mean rating; the published code does not
    random_items: bool = False  # keep the random initial Q, as a baseline without trained items


@dataclass(frozen=True, kw_only=True)
class GCMCConfig:
    """Options of GC-MC."""

    embedding_size: Size = 32  # D
    hidden: Sizes = (32, 32)  # layer sizes of the head
    init_std: Scale = 0.1  # of the initial latents
    center: bool = True  # add the mean rating
    shared_weights: bool = False  # one W for all rating levels, as in the published code
    average_messages: bool = True  # False: sum the messages, as in the published code
    edge_dropout: Dropout = 0.0  # share of the edges that a training step leaves out
    hide_target: bool = True  # in training, hide a row's rating from the towers of that row
    random_items: bool = False  # keep the random initial Q, as a baseline without trained items


@dataclass(frozen=True, kw_only=True)
class IDCFConfig:
    """Options of the IDCF wrapper."""

    heads: Depth = 4  # attention heads H of the relation model
    # key users that a head attends to in a training step, drawn at random; inference attends to
    # all. With "meta-path": the number of neighbors, always
    n_attended_users: Count = 200
    # "meta-path": attend only to the key users who share the most items with the user
    neighbor_scope: Literal["everybody", "meta-path"] = "everybody"
    attention: AttentionKind = "dot"  # see `Relation`, as for `scaled`
    scaled: bool = True
    pooling: Literal["mean", "sum", "root"] = "root"  # of item vectors: see `POOLING_POWER`
    query: Literal["items", "ratings"] = "items"  # "ratings": d_u' reads Σ (r - μ - b_i) q_i too
    standardize: bool = True  # scale queries and keys to unit variance over the key users
    # "own": each training user has a trained bias, which starts at the backbone's, and a new user
    # has bias 0, as in the published code
    bias: Literal["inferred", "own"] = "inferred"
    bias_shrinkage: PseudoCount = (
        DEFAULT_USER_SHRINKAGE  # pseudo-count of residuals of 0 in the bias
    )
    # the following are choices of the published code where they differ from the default
    query_length: bool = True  # the query holds log(1 + n)
    relate_bias: bool = True  # key latents hold the users' biases, so that a bias is induced too
    # whose keys a training step draws, for each head: one sample for the "step", or one for each
    # "user" of it, drawn with replacement, as in the published code
    key_sample: Literal["step", "user"] = "step"
    relation_start: RelationStart = "mean"  # initial weights: see `Relation`
    values_of_keys: bool = False  # W_v acts on W_k p instead of p
