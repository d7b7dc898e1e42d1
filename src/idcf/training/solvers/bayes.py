"""Solver of `BayesModel`: run the Gibbs sampler, average its sweeps in blocks, fit the rest.

φ (ψ) of a user (an item) describes which items it has rated (which users have rated it). The prior
of new users is fitted apart from the sampler's own prior, on histories cut to the lengths that new
users have: a long history predicts a user's latents differently from a short one.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds
from torch import Tensor
from tqdm import tqdm

from idcf.data.interactions import Floats, Interactions, Ints, slice_index
from idcf.data.split import PredictionTask, hold_out_users, least_active_users
from idcf.inference.scoring import interaction_std, rmse_on, score_interactions
from idcf.models.baselines import BiasConfig
from idcf.models.bayes import (
    BayesConfig,
    BayesModel,
    history_features,
    offset_for_empty_histories,
)
from idcf.models.layers.ragged import transpose
from idcf.rng import derive_seed, random_stream
from idcf.training.solvers import SolverContext
from idcf.training.solvers.bias import fit_bias
from idcf.training.solvers.cohorts import fit_cohorts
from idcf.training.solvers.gibbs import PRIOR_PSEUDO_COUNT, GibbsSampler, GibbsSide
from idcf.types import History, Ragged, RaggedRows, Users

_CALIBRATION_PSEUDO_COUNT = 50.0  # rows that favor leaving the intervals as wide as they are
_MAX_SELECTION_USERS = 1000  # key users, at most, that the selection offset is fitted on


def fit_bayes(config: BayesConfig, table: Interactions, context: SolverContext) -> BayesModel:
    """Sample Bayesian matrix factorization and average the sweeps after the burn-in in blocks.

    Parameters
    ----------
    config
        Options of the model and of the sampler. A share `validation` of the users, those with the
        fewest rows, is held out of the sampler.
    table
        The training interactions.
    context
        Seed, device and progress bar; the bar shows the RMSE on the held-out users.

    Returns
    -------
    BayesModel
        The model, with its prior of new users, offsets, cohorts and intervals fitted. The errors
        on the held-out users decide how wide the intervals are.
    """
    rng = random_stream(context.seed, "watched")
    held_out = least_active_users(table, config.validation, rng)
    train_rows, task = hold_out_users(table, held_out, config.history_lengths, rng)
    user_rows = np.flatnonzero(train_rows.user_counts())
    model = BayesModel(config, table.domain())
    order = random_stream(context.seed, "shuffle").permutation(len(train_rows))
    key_users = train_rows.where(order).build_users(user_rows)
    if not config.user_features:
        key_users = Users(key_users.ids, key_users.history)
    users, items = _initialize_sides(model, config, key_users, table.item_features, context)
    sampler = GibbsSampler(users, items, config.noise_dof, context.seed)
    blocks = BlockAccumulator(model, key_users.to(context.device), config, context.seed)
    _run_sampler(sampler, blocks, task, context.progress_label)
    _fit_offsets(model, train_rows, user_rows, config, context.seed)
    model.n_raters.copy_(torch.from_numpy(train_rows.item_counts()))
    fit_cohorts(model, key_users, context.seed)
    if len(task.target_table):
        _calibrate_intervals(model, task)
    return model


def _run_sampler(
    sampler: GibbsSampler,
    blocks: BlockAccumulator,
    task: PredictionTask,
    progress_label: str | None,
) -> None:
    """Run burn-in and sweeps; show the RMSE on the task at the end of each block."""
    config = blocks.config
    per_block = -(-config.sweeps // config.blocks)
    sweeps = range(-config.burn_in, per_block * config.blocks)
    # with None, tqdm shows the bar if the output is a terminal
    disable = None if progress_label else True
    with tqdm(sweeps, desc=progress_label, unit="sweep", disable=disable) as bar:
        for number in bar:
            mean, precision_cholesky = sampler.sweep()
            if number < 0:
                continue
            blocks.add(number // per_block, 1 / per_block, sampler, mean, precision_cholesky)
            block_ends = (number + 1) % per_block == 0
            if block_ends and len(task.target_table) and not bar.disable:
                part = blocks.model.first_blocks((number + 1) // per_block)
                rmse = rmse_on(part, task.target_table, task.history_table)
                bar.set_postfix(valid=f"{rmse:.4f}")


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
    ridge_bias = fit_bias(BiasConfig(), table).item_bias
    item_bias = model.means[..., -1].mean(1).cpu()
    n_raters = torch.from_numpy(table.item_counts())
    model.empty_history_offset.copy_(offset_for_empty_histories(ridge_bias, item_bias, n_raters))


def _calibrate_intervals(model: BayesModel, task: PredictionTask) -> None:
    """Scale the model's standard deviations to its errors on held-out users."""
    targets, history = task.target_table, task.history_table
    error = score_interactions(model, targets, history, anonymous=True) - targets.rating
    error = error / interaction_std(model, targets, history, anonymous=True)
    squares = float(np.square(error, dtype=np.float64).sum())
    prior = _CALIBRATION_PSEUDO_COUNT
    model.std_scale.fill_(((squares + prior) / (len(error) + prior)) ** 0.5)


def _initialize_sides(
    model: BayesModel,
    config: BayesConfig,
    key_users: Users,
    item_features: Floats | None,
    context: SolverContext,
) -> tuple[GibbsSide, GibbsSide]:
    """Return users and items in the sampler's initial state; set the features' basis in `model`
    and move it to the device."""
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
    if config.item_features and item_features is not None:
        psi = torch.cat([psi, torch.from_numpy(item_features)], 1)
    device = context.device
    model.to(device)
    generator = torch.Generator(device).manual_seed(derive_seed(context.seed, "start"))
    users, items = (
        GibbsSide.initialize(h.to(device), x.double().to(device), config.shrinkage, size, generator)
        for h, x in ((by_user, phi), (by_item, psi))
    )
    return users, items


class BlockAccumulator:
    """Averages sweeps of the sampler over blocks, in the model's buffers."""

    def __init__(self, model: BayesModel, key_users: Users, config: BayesConfig, seed: int) -> None:
        self.model = model
        self.key_users = key_users
        self.config = config
        self.rng = random_stream(seed, "cut histories")
        self.tril_indices = torch.tril_indices(*model.packed_index.shape).to(model.device)
        model.noise_precision.zero_()
        model.precision.zero_()
        model.item_precision.zero_()

    def add(
        self,
        block: int,
        weight: float,
        sampler: GibbsSampler,
        mean: Tensor,
        precision_cholesky: Tensor,
    ) -> None:
        """Add one sweep to a block.

        Parameters
        ----------
        block
            The number of the block.
        weight
            The sweep's share of the block.
        sampler
            The sampler after the sweep.
        mean, precision_cholesky
            The return values of `GibbsSampler.sweep`.
        """
        model, users = self.model, sampler.users.latents.double()
        second = torch.cholesky_inverse(precision_cholesky) + mean[:, :, None] * mean[:, None, :]
        row, column = self.tril_indices
        model.means[:, block] += weight * mean
        model.second_moments[:, block] += weight * second[:, row, column]
        model.noise_precision[block] += weight * sampler.noise_precision
        model.mean_key_latent[block] += weight * users.mean(0).float()
        prior_weights, precision = self._fit_user_prior(users)
        model.precision[block] += weight * precision.float()
        model.prior_information[block] += weight * (prior_weights @ precision).float()
        items = sampler.items.latents.double()
        center, precision = items.mean(0), _shrunk_precision(items - items.mean(0))
        model.item_precision[block] += weight * precision.float()
        model.item_prior_information[block] += weight * (center @ precision).float()

    def _fit_user_prior(self, user_latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return W [1 + F, D] and Λ [D, D] of the prior of new users: a ridge regression of the
        latents on features of random short parts of the histories."""
        history = self._sample_short_histories()
        users = Users(self.key_users.ids, history, self.key_users.features)
        features = self.model.prior_features(users).double()
        design = torch.cat([torch.ones_like(features[:, :1]), features], 1)
        ridge = torch.full_like(design[0], self.config.shrinkage)
        ridge[0] = PRIOR_PSEUDO_COUNT
        gram = design.T @ design + ridge.diag()
        weights = torch.linalg.solve(gram, design.T @ user_latents)
        return weights, _shrunk_precision(user_latents - design @ weights)

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


def singular_directions(history: RaggedRows, n_columns: int, rank: int, seed: int) -> Tensor:
    """Return the right singular vectors of the 0/1 histories scaled by 1/√n: [columns, rank].

    Where there are fewer than `rank`, the remaining columns are zero.
    """
    n = history.lengths().numpy()
    scaled = np.repeat(1 / np.sqrt(np.maximum(n, 1)), n)
    shape = (len(n), n_columns)
    matrix = csr_matrix((scaled, history.indices.numpy(), history.offsets.numpy()), shape=shape)
    vectors = np.zeros((rank, n_columns))
    if rank < min(shape):
        start = random_stream(seed, "directions").normal(size=min(shape))
        vectors[:] = svds(matrix, k=rank, v0=start)[2]
    else:  # svds cannot compute all vectors
        dense = np.linalg.svd(matrix.toarray(), full_matrices=False)[2]
        vectors[: len(dense)] = dense
    return torch.from_numpy(vectors.T.copy()).float()
