"""Options of the systems that the paper compares with, which know nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from idcf.config import (
    Count,
    CountOrZero,
    Depth,
    Dropout,
    PseudoCount,
    Ridge,
    Scale,
    Share,
    Size,
    Sizes,
    Weight,
)
from idcf.models.options import DEFAULT_USER_SHRINKAGE

if TYPE_CHECKING:
    from idcf.types import Domain


@dataclass(frozen=True, kw_only=True)
class HistoryEncoderConfig:
    """Options that all models with a `HistoryEncoder` have."""

    init_std: Scale = 0.1  # of the initial vectors; items without interactions keep theirs
    shrinkage: PseudoCount = (
        DEFAULT_USER_SHRINKAGE  # pseudo-count of zero residuals in a user's bias
    )
    use_item_identity: bool = True  # with ratings: which items were rated counts, not only how
    dropout: Dropout = 0.0  # share of a history that a training step does not see
    binary: bool = False  # train on interactions as 1, whatever the rating; see the model's class

    def reads_ratings(self, domain: Domain) -> bool:
        """Return whether the model reads the values of histories as ratings."""
        return not (domain.implicit or self.binary)


@dataclass(frozen=True, kw_only=True)
class AGNNConfig:
    """Options of AGNN."""

    embedding_size: Size = 30  # d
    hidden: Sizes = (64,)  # layer sizes of the head
    init_std: Scale = 0.05  # of the embeddings
    n_candidates: Count = 30  # most similar nodes of each node
    n_neighbors: Count = 10  # candidates that a training step samples
    vae_weight: Weight = 1.0  # of the autoencoder's loss
    # share of the users of a training step that are embedded as new ones
    generated_share: Share = 0.5
    user_features: bool = True  # use them, where there are any
    item_features: bool = True


@dataclass(frozen=True, kw_only=True)
class BomicConfig:
    """Options of BOMIC; penalties are in units of noise, see `BlockRegularization.from_config`."""

    reg: Weight = 0.8  # λ of the residual block
    item_reg: Weight = 0.2  # λ of the item biases
    user_reg: Weight = 0.15  # λ of the user biases
    rank: Size = 60  # largest rank of the residual block
    epochs: Count = 400  # largest number of iterations
    tolerance: Weight = 2e-4  # stop when predictions change by less, relative to the ratings


@dataclass(frozen=True, kw_only=True)
class DemographicRidgeConfig:
    """Options of the demographic ridge."""

    reg: Ridge = 300.0  # λ, in users
    crosses: bool = True  # of user features with item features
    user_features: bool = True  # use them, where there are any
    item_features: bool = True


@dataclass(frozen=True, kw_only=True)
class FEAEConfig:
    """Options of F-EAE."""

    channels: Size = 64  # of hidden layers; the paper: 220
    code: Size = 32  # size of a row code and of a column code; the paper: 100
    encoder: Depth = 2  # layers before the one that is averaged into codes
    decoder: Depth = 2  # hidden layers; the paper: 4
    exchangeable_decoder: bool = False  # decoder layers see row and column means; the paper: True
    counts: bool = True  # append the log number of ratings to a code; not in the paper
    standardize: bool = True  # standardize row and column means; not in the paper
    shrinkage: Weight = 3.0  # pseudo-count of average entries in every mean; the paper: 0
    dropout: Dropout = 0.5  # of the decoder's channels


@dataclass(frozen=True, kw_only=True)
class FISMConfig(HistoryEncoderConfig):
    """Options of FISM."""

    embedding_size: Size = 16  # D
    alpha: Share = 0.5  # a history of n items is multiplied by n^-α


@dataclass(frozen=True, kw_only=True)
class GCMCFeaturesConfig:
    """Options of GC-MC with features."""

    hidden: Size = 100  # units of the convolution, sums of ordinal messages
    embedding_size: Size = 32  # D
    feature_size: Size = 32  # units of the layer of features
    bases: Depth = 2  # of the bilinear decoder
    node_dropout: Dropout = 0.3  # share of the nodes whose messages a training step drops
    dropout: Dropout = 0.3  # of the hidden units
    history_dropout: Share = 0.5  # share of the users of a training step that are isolated
    user_features: bool = True  # use them, where there are any
    item_features: bool = True


@dataclass(frozen=True, kw_only=True)
class GCMCSoftmaxConfig:
    """Options of the original GC-MC."""

    hidden: Size = 500  # units of the convolution, all levels together where they are stacked
    embedding_size: Size = 75  # D
    bases: Depth = 2  # of the bilinear decoder
    accumulate: Literal["stack", "sum"] = "stack"  # the levels' messages; sums are ordinal
    symmetric: bool = False  # divide by sqrt(|N_i| |N_j|) instead of |N_i|
    node_dropout: Dropout = 0.7  # share of the nodes whose messages a training step drops
    dropout: Dropout = 0.7  # of the hidden units
    hide_target: bool = True  # in training, score a pair on the graph without its edge


@dataclass(frozen=True, kw_only=True)
class HybridBackboneConfig:
    """Options of stage 1 of IDCF-HY."""

    embedding_size: Size = 32  # d, of ids and of each field
    hidden: Sizes = (64, 64)  # layer sizes of g_θ
    init_std: Scale = 0.05  # of the embeddings
    # share of the users of a training step whose p_u is replaced by what the relation makes of y_u;
    # without, g_θ relies on p_u, which new users lack
    induced_share: Share = 0.5
    relation_heads: Depth = 4  # of the relation of this stage
    relation_sample: Count = 500  # key users that it attends to in a training step
    user_features: bool = True  # use them, where there are any
    item_features: bool = True


@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """Options of stage 2 of IDCF-HY."""

    n_attended_users: Count = 500  # key users that a head attends to in a training step
    # meta-learning: groups of users of a step, to each of which the relation is adapted; 0: none
    meta_groups: CountOrZero = 0
    meta_rate: Weight = 0.1  # of that adaption


@dataclass(frozen=True, kw_only=True)
class IGMCConfig:
    """Options of IGMC."""

    residual: bool = (
        True  # edges carry residuals of the nodes' offsets; False: levels, as published
    )
    layers: Depth = 2  # graph convolutions
    size: Size = 32  # of a node's state
    bases: Depth = 4  # of the weights of levels
    hidden: Size = 128  # units of the readout
    cap: Count = 255  # largest number of neighbours on each side of a subgraph
    train_cap: Count = 63  # `cap` in training, drawn anew in each step: faster, and as accurate
    dropout: Dropout = 0.1  # of the hidden layer
    edge_dropout: Dropout = 0.0  # share of edges dropped in training
    smoothness: Weight = 0.001  # weight of the adjacent rating penalty (ARR)
    center: bool = True  # add the mean rating; always so with `residual`


@dataclass(frozen=True, kw_only=True)
class MeLUConfig:
    """Options of MeLU."""

    embedding_size: Size = 32  # of a field
    hidden: Sizes = (64, 64)  # the decision layers
    init_std: Scale = 0.05  # of the embeddings
    inner_rate: Weight = 0.05  # α
    inner_steps: Depth = 1  # steps of a user's adaption
    first_order: bool = False  # leave second derivatives out
    item_ids: bool = True  # items have vectors q and biases b of their own
    user_features: bool = True  # use them, where there are any
    item_features: bool = True


@dataclass(frozen=True, kw_only=True)
class MultVAEConfig(HistoryEncoderConfig):
    """Options of Mult-VAE."""

    embedding_size: Size = 32  # of z
    hidden: Size = 64  # size of the hidden layers
    dropout: Dropout = 0.5
    beta: Weight = 0.2  # β, weight of the KL divergence
    anneal: CountOrZero = 1000  # training steps until the weight reaches β


@dataclass(frozen=True, kw_only=True)
class NGCFConfig:
    """Options of NGCF."""

    embedding_size: Size = 64  # D
    layers: Depth = 3  # propagation layers
    dropout: Dropout = 0.1  # of messages
    init_std: Scale = 0.1  # of the initial embeddings
    item_bias: bool = True  # learn an item bias, which starts at the item's log popularity
    hide_target: bool = True  # in training, score a pair on the graph without its edge


@dataclass(frozen=True, kw_only=True)
class NimcConfig:
    """Options of NIMC."""

    embedding_size: Size = 16  # units of the hidden layers
    init_std: Scale = 0.01  # of the initial rows of V; small: items with few ratings stay average
    user_scale: Scale = 0.1  # factor of x_u; small: features matter less, and later
    feature_dropout: Dropout = 0.3  # share of users whose features a training step drops
    user_features: bool = True  # use them, where there are any
    item_features: bool = True


@dataclass(frozen=True, kw_only=True)
class PinSageConfig:
    """Options of PinSAGE: its random walks between items, its convolutions and its training."""

    embedding_size: Size = 64  # D
    layers: Depth = 2  # convolution layers
    neighbors: Count = 20  # of each item: the most visited items
    folds: Count = 3  # 1: all users are trained on one graph, which contains their own rows
    dropout: Dropout = 0.0  # of the item embeddings
    init_std: Scale = 0.1  # of the initial embeddings


@dataclass(frozen=True, kw_only=True)
class TransUserConfig:
    """Options of Trans-User."""

    reg: Weight = 0.0  # ridge penalty of the latent's distance to the mean of the key users
    bias_reg: Weight = 0.0  # ridge penalty of the bias
    steps: Count = 30  # of the solver
    n_negatives: Count = 200  # without ratings: sampled items that represent all others
    negative_weight: Weight = 5.0  # weight of all negatives together, per item of the history


@dataclass(frozen=True, kw_only=True)
class WideDeepConfig:
    """Options of Wide & Deep."""

    embedding_size: Size = 10  # of a field
    hidden: Sizes = (32, 16, 8)  # layer sizes of the deep part
    init_std: Scale = 0.05  # of the embeddings
    user_features: bool = True  # use them, where there are any
    item_features: bool = True
