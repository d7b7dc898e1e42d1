"""Trans-User: no relation; the latent of each user is fitted to the user's own history.

The ablation of Wu et al. 2021 that optimizes P_q itself: min over P_q of D(R_q, f_θ(P_q, Q)), with
Q and θ of the backbone (the paper also tunes θ, but at the optimum few residuals remain). This is
one problem per user. `trans-user` has no penalty, as in the paper: where a history is shorter than
a latent, it takes the minimum nearest to the mean of the key users. `trans-user-ridge` adds ½ reg
‖p - p̄‖² + ½ bias_reg (b - b̄)²; held-out users choose both penalties.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from idcf.models.base import Backbone, BackboneWrapper
from idcf.models.layers.ragged import (
    RowChunks,
    normal_equations,
    segment_sum,
    split_into_chunks,
    sum_pool,
)
from idcf.paper.model_options import TransUserConfig
from idcf.types import Embeddings, History, Ragged, Users

_INITIAL_DAMPING = 1e-2
_MIN_DAMPING = 1e-3
_DAMPING_FACTOR = 5  # damping is divided by it after a good step, else multiplied
_MIN_GAIN = 1e-10  # smallest gain of a step per unit of weight; a smaller one is rounding


class FitProblem(NamedTuple):
    """The least squares or logistic problems of B users, with a label and a weight per entry."""

    entries: Ragged[Tensor]  # B rows, which point at the entries 0..N-1; the values are labels
    owner: Tensor  # int64 [N]
    weight: Tensor  # float64 [N]
    item_vector: Tensor  # float64 [N, D]
    item_bias: Tensor  # float64 [N], with the mean
    message: Tensor  # float64 [N, E]: the part of the user tower that the latent does not change
    chunks: RowChunks  # of `entries`


class TransUser(BackboneWrapper):
    """Fit latents by Levenberg-Marquardt, all users at once, each with its own damping.

    In double precision: without a penalty the problem is ill-posed on purpose, and a score must not
    depend on how a batch rounds.
    """

    has_adaption_stage: ClassVar[bool] = False
    negative_items: Tensor  # int64 [J]
    reg: Tensor  # float64 [D + 1]

    def __init__(self, config: TransUserConfig, backbone: Backbone, key_users: Users) -> None:
        super().__init__(backbone, key_users)
        self.config = config
        self.head.requires_grad_(False)
        negative_items = torch.randperm(self.n_items)[: config.n_negatives]
        self.register_buffer("negative_items", negative_items.to(self.key_latents.device))
        reg = torch.full_like(self.mean_key_latent, config.reg, dtype=torch.float64)
        reg[-1] = config.bias_reg
        self.register_buffer("reg", reg, persistent=False)

    def embed_users(self, users: Users) -> Embeddings:
        """Fit a latent and a bias to each history and pass them through the user tower."""
        with torch.inference_mode(False), torch.no_grad():
            latents = self.fit_users(self.fit_problem(users.history)).float()
            return self.backbone.user_tower(Embeddings(latents[:, :-1], latents[:, -1]), users)

    def fit_users(self, problem: FitProblem) -> Tensor:
        """Return the latents and biases of least loss: float64 [B, D + 1]."""
        start = self.mean_key_latent.double().expand(len(problem.entries.offsets) - 1, -1)
        latents = start
        damping = start.new_full(start.shape[:1], _INITIAL_DAMPING)
        loss = self._loss(latents, problem)
        min_gain = _MIN_GAIN * segment_sum(problem.weight, problem.owner, len(latents))
        for _ in range(self.config.steps):
            hessian, descent = self._gauss_newton(latents, problem)
            damping_matrix = torch.diag_embed(damping[:, None].expand_as(latents))
            hessian = hessian + self.reg.diag() + damping_matrix
            step = torch.linalg.solve(hessian, descent + self.reg * (start - latents))
            new_latents = latents + step
            new_loss = self._loss(new_latents, problem)
            better = new_loss < loss - min_gain
            latents = torch.where(better[:, None], new_latents, latents)
            loss = torch.where(better, new_loss, loss)
            damping = torch.where(better, damping / _DAMPING_FACTOR, damping * _DAMPING_FACTOR)
            damping = damping.clamp(_MIN_DAMPING)
        return latents

    def fit_problem(self, history: History) -> FitProblem:
        """Set up the problems of users with these histories; without ratings, with negatives."""
        history = History(*(x.clone() for x in history))  # inference tensors allow no gradients
        owner, n = history.owner(), history.lengths()
        items, label, weight = history.items, history.values.double(), None
        if not self.predicts_ratings:
            items, label, owner, weight = self._add_negatives(history, owner)
            n = torch.bincount(owner, minlength=len(n))
        rows = Ragged(
            torch.arange(len(items), device=items.device), label, F.pad(n.cumsum(0), (1, 0))
        )
        item = self.backbone.embed_items(items)
        weight = torch.ones_like(label) if weight is None else weight
        bias, vector = item.bias.double() + self.mean, item.vector.double()
        message = self._messages(history).double().index_select(0, owner)
        return FitProblem(rows, owner, weight, vector, bias, message, split_into_chunks(rows))

    def _messages(self, history: History) -> Tensor:
        """Return what the user tower appends to the latents [B, E]; E is 0 without a graph."""
        n_users, size = len(history.offsets) - 1, len(self.mean_key_latent) - 1
        zero = self.mean_key_latent.new_zeros(n_users, size + 1)
        ids = torch.full_like(history.offsets[1:], -1)
        latents = Embeddings(zero[:, :-1], zero[:, -1])
        return self.backbone.user_tower(latents, Users(ids, history)).vector[:, size:]

    def _add_negatives(
        self, history: History, owner: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return items, labels, owners and weights of the history (label 1) and of the negative
        items that are not in it (label 0). The negatives are equal for all users."""
        n_users, n_negatives = len(history.offsets) - 1, len(self.negative_items)
        users = torch.arange(n_users, device=owner.device)
        negative_owner = users.repeat_interleave(n_negatives)
        negatives = self.negative_items.repeat(n_users)
        history_keys = owner * self.n_items + history.items
        is_new = ~torch.isin(negative_owner * self.n_items + negatives, history_keys)
        negative_owner, negatives = negative_owner[is_new], negatives[is_new]
        total_weight = self.config.negative_weight * history.lengths()
        n_per_user = torch.bincount(negative_owner, minlength=n_users).clamp(min=1)
        negative_weight = (total_weight / n_per_user).double()[negative_owner]
        all_owners = torch.cat([owner, negative_owner])
        order = torch.argsort(all_owners, stable=True)
        label = (torch.arange(len(all_owners), device=owner.device) < len(owner)).double()
        weight = torch.cat([torch.ones_like(label[: len(owner)]), negative_weight])
        items = torch.cat([history.items, negatives])
        return items[order], label[order], all_owners[order], weight[order]

    def _scores(self, vector: Tensor, bias: Tensor, problem: FitProblem) -> Tensor:
        """Score every entry for user vectors [N, D] and biases [N], in double precision: [N]."""
        weights = {k: v.double() for k, v in self.head.state_dict().items()}
        user = torch.cat([vector, problem.message], -1)
        score: Tensor = functional_call(self.head, weights, (user, problem.item_vector))
        return score + bias + problem.item_bias

    def _loss(self, latents: Tensor, problem: FitProblem) -> Tensor:
        """Return the penalized loss of each user with these latents and biases: [B]."""
        entry_latents = latents.index_select(0, problem.owner)
        score = self._scores(entry_latents[:, :-1], entry_latents[:, -1], problem)
        label = problem.entries.values
        if self.predicts_ratings:
            loss = (score - label).square() / 2
        else:
            loss = F.binary_cross_entropy_with_logits(score, label, reduction="none")
        fit = segment_sum(problem.weight * loss, problem.owner, len(latents))
        return fit + (self.reg * (latents - self.mean_key_latent).square()).sum(-1) / 2

    def _gauss_newton(self, latents: Tensor, problem: FitProblem) -> tuple[Tensor, Tensor]:
        """Return Σ h J Jᵀ [B, D + 1, D + 1] and the negative gradient of the fit [B, D + 1]."""
        entry_latents = latents.index_select(0, problem.owner)
        with torch.enable_grad():
            vector = entry_latents[:, :-1].clone().requires_grad_()
            score = self._scores(vector, entry_latents[:, -1], problem)
            (gradient,) = torch.autograd.grad(score.sum(), vector)
        score, label = score.detach(), problem.entries.values
        jacobian = torch.cat([gradient, torch.ones_like(gradient[:, :1])], -1)
        if self.predicts_ratings:
            prediction, curvature = score, problem.weight
        else:
            prediction = score.sigmoid()
            curvature = problem.weight * prediction * (1 - prediction)
        scaled = jacobian * curvature.sqrt()[:, None]
        hessian, _ = normal_equations(scaled, problem.entries, label, problem.chunks)
        residuals = problem.weight * (label - prediction)
        return hessian, sum_pool(jacobian, problem.entries, residuals)
