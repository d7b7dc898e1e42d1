"""Solver of `BayesModel`: sample matrix factorization, average the sweeps in blocks, fit the rest.

    (p_u, b_u) ~ N(m_U + Bᵀφ_u, Λ_U⁻¹),  (q_i, b_i) ~ N(m_V + Aᵀψ_i, Λ_V⁻¹)
    r_ui ~ N(μ + b_u + b_i + p_uᵀq_i, 1 / (α w_u)),  α ~ Gamma,  w_u ~ Gamma(ν/2, ν/2)

φ (ψ) of a user (an item) describes which items it has rated (which users have rated it). Every
step draws from the exact conditional distribution of this model, with the priors that are written
in `idcf.training.solvers.normal_wishart`. The fitted model has the noise precision of the mean
rating. The prior of new users is fitted apart, on histories cut to the lengths that new users
have: a long history predicts a user's latents differently from a short one.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Floats, Interactions, Ints, slice_index
from idcf.data.progress import progress_bar
from idcf.data.split import (
    hold_out_users,
    rows_of_sampled_users,
)
from idcf.inference.scoring import score_interactions
from idcf.models.bayes import (
    BLOCK_BUFFERS,
    BayesModel,
    history_features,
    offset_for_empty_histories,
)
from idcf.models.layers.ragged import (
    RowChunks,
    item_ridge_biases,
    normal_equations,
    segment_sum,
    select_entries,
    split_into_chunks,
    transpose,
)
from idcf.models.options import LARGE_CATALOG, BayesConfig
from idcf.rng import derive_seed, random_stream
from idcf.training import size_limits
from idcf.training.array_store import StoredSteps
from idcf.training.solvers import SolverContext
from idcf.training.solvers.blockwise_gibbs import (
    FEATURE_WARMUP_SWEEPS,
    BlockwiseSampler,
    BlockwiseSide,
    MomentSums,
)
from idcf.training.solvers.chain_state import chain_state, restore_chain
from idcf.training.solvers.cohorts import fit_cohorts
from idcf.training.solvers.conformal_intervals import calibrate, plan_folds, predict_held_out
from idcf.training.solvers.neighbor_weights import choose_weight, find_neighbors
from idcf.training.solvers.normal_wishart import (
    PRIOR_PSEUDO_COUNT,
    FeatureWeights,
    mean_noise_precision,
    sample_noise,
    sample_normal_wishart,
)
from idcf.training.solvers.rating_unit import set_rating_unit
from idcf.training.solvers.singular_directions import singular_directions
from idcf.types import History, Ragged, Users

_MAX_SELECTION_USERS = 1000  # key users, at most, that the selection offset is fitted on


def fit_bayes(config: BayesConfig, table: Interactions, context: SolverContext) -> BayesModel:
    """Sample Bayesian matrix factorization and average the sweeps after the burn-in in blocks.

    How wide the intervals are is decided by users whose rows are removed from the chain after that:
    see `idcf.training.solvers.conformal_intervals`.
    """
    is_large = is_large_table(table, context.table_rows)
    config, table = limit_work(config, table, context)
    unit = table.domain().rating_unit
    table = replace(table, rating=table.rating / np.float32(unit))  # the priors are of unit size
    user_rows = np.flatnonzero(table.user_counts())
    model = BayesModel(config, table.domain())
    order = random_stream(context.seed, "shuffle").permutation(len(table))
    key_users = table.where(order).build_users(user_rows)
    if not config.user_features:
        key_users = Users(key_users.ids, key_users.history)
    start = _initialize_blocks if is_large else _initialize_sampler
    sampler = start(model, config, key_users, table.item_features, context)
    blocks = BlockAccumulator(model, key_users.to(context.device), config, context.seed)
    _run_sampler(sampler, blocks, context)
    _fit_offsets(model, table, user_rows, config, context.seed)
    model.n_raters.copy_(torch.from_numpy(table.item_counts()))
    fit_cohorts(model, key_users, context.seed)
    rng = random_stream(context.seed, "intervals")
    folds = list(plan_folds(table, config.validation, config.history_lengths, context, rng))
    part = ChainPart(sampler, blocks, user_rows, n_fold_sweeps(config, len(folds)), table)
    rows = predict_held_out(folds, part.fit_without)
    weight = choose_weight(rows.user, rows.error, rows.correction)
    n_neighbors = config.n_neighbors(model.n_items)
    if weight:
        model.set_neighbors(find_neighbors(table, n_neighbors), weight)
    context.details.update(neighbors=n_neighbors, neighbor_weight=round(weight, 2))
    calibrate(model, rows.errors(weight), context)
    set_rating_unit(model, unit)
    return model


def is_large_table(table: Interactions, table_rows: int = 0) -> bool:
    """Return whether a table gets fewer sweeps, drawn in blocks of rows: it has more rows than
    `LARGE_TABLE`, or as many items as `LARGE_CATALOG`. A sample counts as the `table_rows` that it
    was drawn from."""
    return (
        max(len(table), table_rows) > size_limits.LARGE_TABLE or len(table.items) >= LARGE_CATALOG
    )


def limit_work(
    config: BayesConfig, table: Interactions, context: SolverContext
) -> tuple[BayesConfig, Interactions]:
    """Return config and table unchanged, or for a large table with fewer sweeps, and with the rows
    of a random part of the users; write what was done into the details of `context`."""
    n_users, n_items = int((table.user_counts() > 0).sum()), len(table.items)
    is_large = is_large_table(table, context.table_rows)
    if is_large:
        sweeps, burn_in = (
            round(size_limits.LARGE_TABLE_SWEEPS * x) for x in (config.sweeps, config.burn_in)
        )
        config = replace(config, sweeps=max(1, sweeps), burn_in=burn_in)
        max_rows = max(size_limits.MIN_SAMPLED_ROWS, size_limits.SAMPLED_ROWS_PER_ITEM * n_items)
        table = rows_of_sampled_users(table, max_rows, random_stream(context.seed, "large table"))
    context.details.update(
        key_users=n_users,
        key_users_used=int((table.user_counts() > 0).sum()),
        rows_used=len(table),
        sweeps=config.burn_in + config.sweeps,
        sampler="blocks of rows" if is_large else "all rows at once",
    )
    return config, table


def _run_sampler(
    sampler: GibbsSampler | BlockwiseSampler,
    blocks: BlockAccumulator,
    context: SolverContext,
) -> None:
    """Run burn-in and sweeps, those that are not stored."""
    config, n_blocks = blocks.config, len(blocks.model.noise_precision)
    per_block = -(-config.sweeps // n_blocks)
    steps = StoredSteps(context.store, "chain")
    n_stored, state = steps.load()
    if n_stored:
        restore_chain(sampler, blocks, state)
    sweeps = range(-config.burn_in, per_block * n_blocks)
    with progress_bar(context.progress_label, steps=sweeps[n_stored:], unit="sweep") as bar:
        for n_sweeps, number in enumerate(bar, n_stored + 1):
            blocks.add_sweep(sampler, number // per_block, 1 / per_block)
            if number >= 0 and (number + 1) % per_block == 0:
                blocks.end_block(sampler, number // per_block)
            if steps.is_due():
                steps.save(n_sweeps, chain_state(sampler, blocks))


def _fit_offsets(
    model: BayesModel, table: Interactions, key_users: Ints, config: BayesConfig, seed: int
) -> None:
    """Fit the offsets for selection (users rate items they like) and for empty histories."""
    rng = random_stream(seed, "selection")
    users = np.sort(key_users[rng.permutation(len(key_users))[:_MAX_SELECTION_USERS]])
    _, task = hold_out_users(table, users, config.history_lengths, rng)
    targets, history = task.target_table, task.history_table
    error = targets.rating - score_interactions(model, targets, history, anonymous=True)
    n_targets = np.maximum(targets.user_counts()[users], 1)
    mean_error = np.bincount(targets.user, error, len(table.users))[users] / n_targets
    n = history.user_counts()[users]
    features = np.stack([(1 + n) ** -0.5, 1 / (1 + n)], 1)
    gram = features.T @ features + PRIOR_PSEUDO_COUNT * np.eye(2)
    coefficients = np.linalg.solve(gram, features.T @ mean_error)
    model.selection_coefficients.copy_(torch.from_numpy(coefficients))
    ridge_bias = item_ridge_biases(table.domain(), dtype=torch.float64)
    item_bias = model.means[..., -1].mean(1).cpu()
    n_raters = torch.from_numpy(table.item_counts())
    model.empty_history_offset.copy_(offset_for_empty_histories(ridge_bias, item_bias, n_raters))


def n_fold_sweeps(config: BayesConfig, n_folds: int) -> int:
    """Return the sweeps of each fold; all together are `FOLD_SWEEPS_SHARE` of the chain's."""
    share = size_limits.FOLD_SWEEPS_SHARE * (config.burn_in + config.sweeps)
    return max(size_limits.MIN_FOLD_SWEEPS, round(share / max(n_folds, 1)))


@dataclass(frozen=True)
class ChainPart:
    """A few more sweeps of a chain, from its present state, without the ratings of some users."""

    sampler: GibbsSampler | BlockwiseSampler
    blocks: BlockAccumulator  # of the whole chain, whose model is fitted
    user_rows: Ints  # [U]: rows of the chain's users in the table
    n_sweeps: int  # the first third is discarded
    table: Interactions  # of the chain

    def fit_without(self, users: Ints) -> BayesModel:
        """Return a model of one block that has not seen the ratings of some users."""
        removed = torch.from_numpy(np.isin(self.user_rows, users)).to(self.blocks.model.device)
        model = self.blocks.model.first_blocks(1)
        for name in (*BLOCK_BUFFERS, "means", "second_moments"):
            setattr(model, name, torch.zeros_like(getattr(model, name)))
        blocks = BlockAccumulator(
            model, self.blocks.key_users, self.blocks.config, self.blocks.seed, ~removed
        )
        sampler, n_discarded = self.sampler.without_users(removed), self.n_sweeps // 3
        for number in range(-n_discarded, self.n_sweeps - n_discarded):
            block = min(number, 0)  # those before 0 are discarded
            blocks.add_sweep(sampler, block, 1 / (self.n_sweeps - n_discarded))
        blocks.end_block(sampler, 0)
        n_neighbors = self.blocks.config.n_neighbors(model.n_items)
        if not n_neighbors:
            return model
        rows = self.table.where(~self.table.user_mask(users)[self.table.user])
        return model.with_neighbors(find_neighbors(rows, n_neighbors))


class SideData(NamedTuple):
    """The ratings less μ and the features of the users, or of the items."""

    ratings: Ragged[Tensor]
    features: Tensor


def _prepare_sides(
    model: BayesModel,
    config: BayesConfig,
    key_users: Users,
    item_features: Floats | None,
    context: SolverContext,
) -> tuple[SideData, SideData]:
    """Return ratings and features of users and items on the device; set the features' basis in
    `model` and move it there."""
    history, rank, size = key_users.history, config.rank, config.embedding_size + 1
    by_user = Ragged(history.items, history.values - model.mean, history.offsets)
    by_item = transpose(by_user, model.n_items).rows
    model.basis = singular_directions(history, model.n_items, rank, context.seed)
    rater_basis = singular_directions(by_item, len(key_users), rank, context.seed)
    phi, psi = history_features(model.basis, history), history_features(rater_basis, by_item)
    model.feature_mean = phi.mean(0)
    model.feature_std = phi.std(0, correction=0) + 1e-6
    if key_users.features is not None:
        phi = torch.cat([phi, key_users.features], 1)
        n_blocks = len(model.noise_precision)
        model.prior_information = torch.zeros(n_blocks, phi.shape[1] + 1, size)
        model.feature_weights = torch.zeros(n_blocks, key_users.features.shape[1], size)
    if config.item_features and item_features is not None:
        psi = torch.cat([psi, torch.from_numpy(item_features)], 1)
    device = context.device
    model.to(device)
    users, items = (
        SideData(h.to(device), x.to(device)) for h, x in ((by_user, phi), (by_item, psi))
    )
    return users, items


def _initialize_sampler(
    model: BayesModel,
    config: BayesConfig,
    key_users: Users,
    item_features: Floats | None,
    context: SolverContext,
) -> GibbsSampler:
    """Return the sampler of a small table in its initial state; see `_prepare_sides`."""
    sides = _prepare_sides(model, config, key_users, item_features, context)
    generator = torch.Generator(context.device).manual_seed(derive_seed(context.seed, "start"))
    users, items = (
        GibbsSide.initialize(
            x.ratings, x.features.double(), config.shrinkage, config.embedding_size + 1, generator
        )
        for x in sides
    )
    return GibbsSampler(users, items, config.noise_dof, context.seed)


def _initialize_blocks(
    model: BayesModel,
    config: BayesConfig,
    key_users: Users,
    item_features: Floats | None,
    context: SolverContext,
) -> BlockwiseSampler:
    """Return the sampler of a large table in its initial state; see `_prepare_sides`."""
    sides = _prepare_sides(model, config, key_users, item_features, context)
    generator = torch.Generator(context.device).manual_seed(derive_seed(context.seed, "start"))
    size, n_rows = config.embedding_size + 1, [len(x.features) for x in sides]
    users, items = (
        BlockwiseSide.initialize(x.ratings, x.features, config.shrinkage, size, generator, n_others)
        for x, n_others in zip(sides, reversed(n_rows), strict=True)
    )
    return BlockwiseSampler(users, items, config.noise_dof, context.seed)


class BlockAccumulator:
    """Averages sweeps of the sampler over blocks, in the model's buffers.

    `used`, bool [U], are the users that the priors are fitted on; all of them by default.
    """

    def __init__(
        self,
        model: BayesModel,
        key_users: Users,
        config: BayesConfig,
        seed: int,
        used: Tensor | None = None,
    ) -> None:
        self.model = model
        self.key_users = key_users
        self.config = config
        self.seed = seed
        self.used = torch.ones(len(key_users), dtype=torch.bool) if used is None else used
        self.rng = random_stream(seed, "cut histories")
        self.tril_indices = torch.tril_indices(*model.packed_index.shape).to(model.device)
        model.noise_precision.zero_()
        model.precision.zero_()
        model.item_precision.zero_()

    def add_sweep(
        self, sampler: GibbsSampler | BlockwiseSampler, block: int, weight: float
    ) -> None:
        """Run one sweep and add it, `weight` of its block; one of a negative block is not added."""
        model = self.model
        if isinstance(sampler, GibbsSampler):
            mean, precision_cholesky = sampler.sweep()
            if block >= 0:
                self.add(block, weight, sampler, mean, precision_cholesky)
            return
        if block < 0:
            sampler.sweep()
            return
        sampler.sweep(MomentSums(model.means[:, block], model.second_moments[:, block], weight))
        self._add_state(block, weight, sampler, sampler.items.rated_latents().double())

    def end_block(self, sampler: GibbsSampler | BlockwiseSampler, block: int) -> None:
        """Complete the moments of a block after its last sweep."""
        if isinstance(sampler, BlockwiseSampler):
            sums = self.model.means[:, block], self.model.second_moments[:, block]
            sampler.items.copy_prior_moments(*sums)

    def add(
        self,
        block: int,
        weight: float,
        sampler: GibbsSampler,
        mean: Tensor,
        precision_cholesky: Tensor,
    ) -> None:
        """Add one sweep, `weight` of its block: the state of the sampler after the sweep, and the
        item means and Cholesky factors that `GibbsSampler.sweep` returned."""
        second = torch.cholesky_inverse(precision_cholesky) + mean[:, :, None] * mean[:, None, :]
        row, column = self.tril_indices
        self.model.means[:, block] += weight * mean
        self.model.second_moments[:, block] += weight * second[:, row, column]
        self._add_state(block, weight, sampler, sampler.items.latents.double())

    def _add_state(
        self, block: int, weight: float, sampler: GibbsSampler | BlockwiseSampler, items: Tensor
    ) -> None:
        """Add the noise, the priors and the users' mean after one sweep; `items` are latents."""
        model, users = self.model, sampler.users.latents[self.used].double()
        model.noise_precision[block] += weight * sampler.mean_noise_precision()
        model.mean_key_latent[block] += weight * users.mean(0).float()
        if self.key_users.features is not None:
            model.feature_weights[block] += weight * self._fit_feature_weights(users).float()
        prior_weights, precision = self._fit_user_prior(users)
        model.precision[block] += weight * precision.float()
        model.prior_information[block] += weight * (prior_weights @ precision).float()
        center, precision = items.mean(0), _shrunk_precision(items - items.mean(0))
        model.item_precision[block] += weight * precision.float()
        model.item_prior_information[block] += weight * (center @ precision).float()

    def _fit_user_prior(self, user_latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return W [1 + F, D] and Λ [D, D] of the prior of new users: a ridge regression of the
        latents on features of random short parts of the histories."""
        history = self._sample_short_histories()
        users = Users(self.key_users.ids, history, self.key_users.features)
        features = self.model.prior_features(users)[self.used].double()
        design = torch.cat([torch.ones_like(features[:, :1]), features], 1)
        ridge = torch.full_like(design[0], self.config.shrinkage)
        ridge[0] = PRIOR_PSEUDO_COUNT
        gram = design.T @ design + ridge.diag()
        weights = torch.linalg.solve(gram, design.T @ user_latents)
        return weights, _shrunk_precision(user_latents - design @ weights)

    def _fit_feature_weights(self, user_latents: Tensor) -> Tensor:
        """Return the ridge regression [F', D] of centered latents on the user features alone, for
        users without a history."""
        assert self.key_users.features is not None
        x = self.key_users.features[self.used].double()
        ridge = self.config.shrinkage * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        centered = user_latents - user_latents.mean(0)
        weights: Tensor = torch.linalg.solve(x.T @ x + ridge, x.T @ centered)
        return weights

    def _sample_short_histories(self) -> History:
        """Return a random run of entries of each history.

        The histories were shuffled once, so that every subset of a length is equally likely.
        """
        history = self.key_users.history
        offsets = history.offsets.cpu().numpy()
        counts = np.diff(offsets)
        low, high = self.config.history_lengths
        lengths = np.minimum(self.rng.integers(low, high + 1, len(counts)), counts)
        start = (self.rng.random(len(counts)) * (counts - lengths + 1)).astype(np.int64)
        index, short_offsets = slice_index(offsets[:-1] + start, lengths)
        device = history.items.device
        entries = torch.from_numpy(index).to(device)
        ends = torch.from_numpy(short_offsets).to(device)
        return History(history.items[entries], history.values[entries], ends)


def _shrunk_precision(centered_rows: Tensor) -> Tensor:
    """Return the precision [D, D] of rows whose mean is 0, slightly shrunk towards I."""
    eye = torch.eye(centered_rows.shape[1], dtype=centered_rows.dtype, device=centered_rows.device)
    inverse = torch.linalg.inv(centered_rows.T @ centered_rows + eye)
    precision: Tensor = (len(centered_rows) + len(eye)) * inverse
    return precision


@dataclass
class GibbsSide:
    """Users or items: their ratings, their features and the state of their half of the chain."""

    ratings: Ragged[Tensor]  # of each row: rows of the other side, and the ratings less μ
    chunks: RowChunks  # of `ratings`
    features: Tensor  # [n, F] in float64: φ or ψ
    gram_inverse: Tensor  # (φᵀφ + λI)⁻¹
    shrinkage: float  # λ
    latents: Tensor  # [n, D], the bias last
    mean: Tensor  # [D]
    precision: Tensor  # [D, D]
    feature_weights: Tensor  # [F, D]: B or A

    @classmethod
    def initialize(
        cls,
        ratings: Ragged[Tensor],
        raw_features: Tensor,
        shrinkage: float,
        size: int,
        generator: torch.Generator,
    ) -> GibbsSide:
        """Return the side with standardized features and small random latents; λ is `shrinkage`."""
        std = raw_features.std(0, correction=0) + 1e-9
        features = (raw_features - raw_features.mean(0)) / std
        width, device = features.shape[1], ratings.values.device
        eye = torch.eye(width, dtype=torch.float64, device=device)
        latent = torch.randn(len(raw_features), size, generator=generator, device=device) * 0.1
        zero = torch.zeros(width, size, dtype=torch.float64, device=device)
        return cls(
            ratings,
            split_into_chunks(ratings),
            features,
            torch.linalg.inv(features.T @ features + shrinkage * eye),
            shrinkage,
            latent,
            zero[0],
            torch.eye(size, dtype=torch.float64, device=device),
            zero,
        )

    def with_entries(self, chosen: Tensor) -> GibbsSide:
        """Return the side with some of the ratings, bool [N], alone, in the present state."""
        ratings = select_entries(self.ratings, chosen)
        return replace(self, ratings=ratings, chunks=split_into_chunks(ratings))

    def precision_times_prior_mean(self) -> Tensor:
        """Return Λ times the prior mean of each row: [n, D]."""
        return (self.mean + self.features @ self.feature_weights) @ self.precision


class GibbsSampler:
    """The Markov chain; `sweep` draws every variable once.

    `noise_dof` is ν, the degrees of freedom of the users' noise; infinite for equal weights w_u.
    """

    def __init__(self, users: GibbsSide, items: GibbsSide, noise_dof: float, seed: int) -> None:
        self.users = users
        self.items = items
        self.noise_dof = noise_dof
        self.noise_precision = 1.5  # α
        self.n_sweeps = 0
        self.user_weights = torch.ones_like(users.latents[:, 0])  # w_u
        self.rng = random_stream(seed, "gibbs")
        device = users.latents.device
        self.generator = torch.Generator(device).manual_seed(derive_seed(seed, "gibbs"))

    def sweep(self) -> tuple[Tensor, Tensor]:
        """Draw hyperparameters, users, items and noise, in this order.

        Returns the mean [I, D] of the normal distributions that the items were drawn from, and the
        Cholesky factor [I, D, D] of their precision: less noisy than the draw itself.
        """
        for side in (self.users, self.items):
            self._sample_hyperparameters(side)
        alpha = self.noise_precision * self.user_weights[:, None]
        self.users.latents = self._sample_latents(self.users, self.items, alpha)[0]
        self.items.latents, mean, factor = self._sample_latents(self.items, self.users, None)
        self._sample_noise()
        self.n_sweeps += 1
        return mean, factor

    def without_users(self, removed: Tensor) -> GibbsSampler:
        """Return a sampler in this one's state without the ratings of some users, bool [U]."""
        out, ratings = copy(self), self.users.ratings
        out.users = self.users.with_entries(~removed[ratings.owner()])
        out.items = self.items.with_entries(~removed[self.items.ratings.indices])
        return out

    def mean_noise_precision(self) -> float:
        """Return the noise precision of the mean rating."""
        return mean_noise_precision(
            self.noise_precision, self.user_weights, self.users.ratings.lengths()
        )

    def _sample_hyperparameters(self, side: GibbsSide) -> None:
        """Draw (m, Λ) of one side and, after the warm-up, its feature weights."""
        latent = side.latents.double()
        residual = (latent - side.features @ side.feature_weights).cpu().numpy()
        weights = FeatureWeights(side.feature_weights.cpu().numpy(), side.shrinkage)
        mean, precision = sample_normal_wishart(residual, weights, self.rng)
        like = side.mean
        side.mean = torch.from_numpy(mean).to(like)
        side.precision = torch.from_numpy(precision).to(like)
        if self.n_sweeps >= FEATURE_WARMUP_SWEEPS:
            center = side.gram_inverse @ (side.features.T @ (latent - side.mean))
            noise = torch.from_numpy(self.rng.normal(size=center.shape)).to(like)
            rows = torch.linalg.cholesky(side.gram_inverse)
            columns = torch.linalg.inv(torch.linalg.cholesky(side.precision))
            side.feature_weights = center + rows @ noise @ columns

    def _sample_latents(
        self, side: GibbsSide, other_side: GibbsSide, row_noise_precision: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the latents of one side; return them with the means and the Cholesky factors of
        the precisions they were drawn with.

        `row_noise_precision` [n, 1] is α w of each row. None: `side` is the items, and each rating
        has the α w of its user.
        """
        ratings, latent = side.ratings, other_side.latents
        vectors = torch.cat([latent[:, :-1], torch.ones_like(latent[:, :1])], 1)
        target = ratings.values - latent[ratings.indices, -1]
        if row_noise_precision is None:
            root = (self.noise_precision * self.user_weights).sqrt()
            vectors, target = vectors * root[:, None], target * root[ratings.indices]
        outer, right = normal_equations(vectors, ratings, target, side.chunks)
        if row_noise_precision is not None:
            outer, right = row_noise_precision[..., None] * outer, row_noise_precision * right
        factor = torch.linalg.cholesky(outer + side.precision.to(outer))
        right = right + side.precision_times_prior_mean().to(right)
        mean = torch.cholesky_solve(right[..., None], factor)
        noise = torch.randn(
            mean.shape, generator=self.generator, device=mean.device, dtype=mean.dtype
        )
        deviation = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
        return (mean + deviation)[..., 0], mean[..., 0], factor

    def _sample_noise(self) -> None:
        """Draw the users' weights w_u and α."""
        ratings, users, items = self.users.ratings, self.users.latents, self.items.latents
        owner = ratings.owner()
        p, q = users[owner], items[ratings.indices]
        fitted = (p[:, :-1] * q[:, :-1]).sum(1) + p[:, -1] + q[:, -1]
        squared_error = segment_sum((ratings.values - fitted).square(), owner, len(users))
        self.noise_precision, weight = sample_noise(
            squared_error.double().cpu().numpy(),
            ratings.lengths().cpu().numpy(),
            self.noise_precision,
            self.noise_dof,
            self.rng,
        )
        self.user_weights = torch.from_numpy(weight).to(self.user_weights)
