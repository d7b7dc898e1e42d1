"""Trans-User: no relation at all. Everybody gets a latent of their own, fitted to what they did.

The ablation of Wu et al. 2021 that optimises P_q itself: min over P_q of D(R_q, f_θ(P_q, Q)), Q
fixed. Given Q and θ that is one problem a user, so it can be solved for whoever comes, from the
history alone, to the same P_q that a joint descent ends at. θ stays the backbone's: the paper
tunes it along, but at the optimal P_q few of its training residuals are left to tune it by.

`trans-user` has no penalty, as in the paper, and goes to the minimum: where a history is shorter
than a latent, to the one that is nearest to the mean of the key users, from which it starts.
`trans-user-ridge` adds ½ reg ‖p - p̄‖² + ½ bias_reg (b - b̄)², strengths by held-out users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from idcf.models.base import Backbone, Wrapper
from idcf.models.layers.ragged import Pieces, normal_equations, pieces, pool, segment_sum
from idcf.types import Embedded, History, Users

_FIRST, _LEAST = 1e-2, 1e-3  # damping: at the start, and where every step was a good one
_GAIN = 1e-10  # of the loss of a row, that a step must bring: less is no gain, and rounding


@dataclass(frozen=True, kw_only=True)
class TransUserConfig:
    reg: float = 0.0
    bias_reg: float = 0.0
    steps: int = 30
    rivals: int = 200  # items that stand for all others, without ratings
    negatives: float = 5.0  # how much the rivals weigh together, for each item of the history


class Rows(NamedTuple):
    """What users are fitted to: ragged, one label and weight an entry."""

    history: History  # `items` are 0..N-1, `values` the labels
    owner: Tensor
    weight: Tensor
    vector: Tensor  # [N, D] of the items
    bias: Tensor  # [N], with the mean
    cut: Pieces


class TransUser(Wrapper):
    """Levenberg-Marquardt, all users at once and each with a damping of their own.

    In double precision: without a penalty the problem is as ill-posed as it is meant to be, and
    an answer must not depend on how a batch rounds.
    """

    adapts: ClassVar[bool] = False
    rivals: Tensor  # int64 [J]
    reg: Tensor  # float64 [D + 1]

    def __init__(self, config: TransUserConfig, backbone: Backbone, keys: Users) -> None:
        super().__init__(backbone, keys)
        self.config = config
        self.head.requires_grad_(False)
        drawn = torch.randperm(self.n_items)[: config.rivals]
        self.register_buffer("rivals", drawn.to(self.keys.device))
        reg = torch.full_like(self.average, config.reg, dtype=torch.float64)
        reg[-1] = config.bias_reg
        self.register_buffer("reg", reg, persistent=False)

    def embed_users(self, users: Users) -> Embedded:
        with torch.inference_mode(False), torch.no_grad():
            found = self.settle(self.rows(users.history)).float()
            return self.backbone.compose(Embedded(found[:, :-1], found[:, -1]), users)

    def settle(self, rows: Rows) -> Tensor:
        """The latents and biases that fit best: float64 [B, D + 1]."""
        start = self.average.double().expand(len(rows.history.offsets) - 1, -1)
        own, damp, eye = start, start.new_full(start.shape[:1], _FIRST), self.reg.diag()
        least = self._loss(own, rows)
        gain = _GAIN * segment_sum(rows.weight, rows.owner, len(own))
        for _ in range(self.config.steps):
            left, right = self._slope(own, rows)
            left = left + eye + torch.diag_embed(damp[:, None].expand_as(own))
            tried = own + torch.linalg.solve(left, right + self.reg * (start - own))
            loss = self._loss(tried, rows)
            better = loss < least - gain
            own, least = torch.where(better[:, None], tried, own), torch.where(better, loss, least)
            damp = torch.where(better, damp / 5, damp * 5).clamp(_LEAST)
        return own

    def rows(self, history: History) -> Rows:
        history = History(*(x.clone() for x in history))  # not of somebody's inference mode
        owner, n = history.owner(), history.lengths()
        items, label, weight = history.items, history.values.double(), None
        if not self.rates:
            items, label, owner, weight = self._against(history, owner)
            n = torch.bincount(owner, minlength=len(n))
        rows = History(
            torch.arange(len(items), device=items.device), label, F.pad(n.cumsum(0), (1, 0))
        )
        item = self.backbone.embed_items(items)
        weight = torch.ones_like(label) if weight is None else weight
        bias = item.bias.double() + self.mean
        return Rows(rows, owner, weight, item.vector.double(), bias, pieces(rows))

    def _against(self, history: History, owner: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Without ratings: the history, labelled 1, and the rivals who are not in it, labelled 0.
        The same for everybody, so nothing is left to chance."""
        users, each = len(history.offsets) - 1, len(self.rivals)
        whose = torch.arange(users, device=owner.device).repeat_interleave(each)
        rivals = self.rivals.repeat(users)
        new = ~torch.isin(whose * self.n_items + rivals, owner * self.n_items + history.items)
        whose, rivals = whose[new], rivals[new]
        share = (
            self.config.negatives
            * history.lengths()
            / torch.bincount(whose, minlength=users).clamp(min=1)
        )
        both = torch.cat([owner, whose])
        order = torch.argsort(both, stable=True)
        label = (torch.arange(len(both), device=owner.device) < len(owner)).double()
        weight = torch.cat([torch.ones_like(label[: len(owner)]), share.double()[whose]])
        return torch.cat([history.items, rivals])[order], label[order], both[order], weight[order]

    def _scores(self, vector: Tensor, bias: Tensor, rows: Rows) -> Tensor:
        weights = {k: v.double() for k, v in self.head.state_dict().items()}
        score: Tensor = functional_call(self.head, weights, (vector, rows.vector))
        return score + bias + rows.bias

    def _loss(self, own: Tensor, rows: Rows) -> Tensor:
        """What is minimised, for each user."""
        each = own.index_select(0, rows.owner)
        score, label = self._scores(each[:, :-1], each[:, -1], rows), rows.history.values
        if self.rates:
            loss = (score - label).square() / 2
        else:
            loss = F.binary_cross_entropy_with_logits(score, label, reduction="none")
        fit = segment_sum(rows.weight * loss, rows.owner, len(own))
        return fit + (self.reg * (own - self.average).square()).sum(-1) / 2

    def _slope(self, own: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Gauss-Newton: Σ h J Jᵀ [B, D + 1, D + 1] and the direction of steepest descent."""
        each = own.index_select(0, rows.owner)
        with torch.enable_grad():
            vector = each[:, :-1].clone().requires_grad_()
            score = self._scores(vector, each[:, -1], rows)
            (slope,) = torch.autograd.grad(score.sum(), vector)
        score, label = score.detach(), rows.history.values
        jacobian = torch.cat([slope, torch.ones_like(slope[:, :1])], -1)
        guess = score if self.rates else score.sigmoid()
        bend = rows.weight if self.rates else rows.weight * guess * (1 - guess)
        scaled = jacobian * bend.sqrt()[:, None]
        left, _ = normal_equations(scaled, rows.history, label, rows.cut)
        return left, pool(jacobian, rows.history, rows.weight * (label - guess))
