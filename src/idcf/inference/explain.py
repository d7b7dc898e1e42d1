"""Why an item, and what to ask next. Knows rows, no outside ids."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.models.base import Model
from idcf.models.bayes import Bayes
from idcf.types import History, Users


@torch.inference_mode()
def leave_one_out(
    model: Model, rows: Ints, values: Floats, item: int, features: Floats | None = None
) -> tuple[float, list[float]]:
    """The score of an item, and what it owes to each row of the history: the score with it, less
    the score without. Exact: nothing is linearised, everybody is answered in one pass."""
    n = len(rows)
    kept = np.concatenate([np.arange(n), *(np.delete(np.arange(n), k) for k in range(n))])
    offsets = np.concatenate([[0, n], n + (n - 1) * np.arange(1, n + 1)])
    history = History(*(torch.from_numpy(x) for x in (rows[kept], values[kept], offsets)))
    known = None if features is None else torch.from_numpy(features).expand(n + 1, -1)
    users = Users(torch.full((n + 1,), -1), history, known).to(model.device)
    asked = torch.full((n + 1, 1), item, device=model.device)
    scores = model(users, asked, torch.arange(n + 1, device=model.device))[:, 0].tolist()
    return scores[0], [scores[0] - x for x in scores[1:]]


@torch.inference_mode()
def cohorts(model: Bayes, users: Users) -> Tensor:
    """How much each cohort of key users is like these people: [B, C], rows that sum to 1."""
    vector = model.embed_users(users).vector
    away = torch.cdist(vector, model.centers).square() / (2 * model.spread.square() + 1e-12)
    return torch.softmax(model.sizes.log() - away, 1)


@torch.inference_mode()
def gains(model: Bayes, users: Users, *, known: bool = False) -> Tensor:
    """What an answer about each item is expected to tell: [B, I].

    With S the covariance of the user and M the mean of ff' over what people rate, an answer about
    f lowers the expected variance tr SM by f'SMSf / (1/α + f'Sf). It comes only from somebody who
    knows the item, so unless all are `known` it is weighed by how many key users rated it: by the
    root of that, because what everybody knows tells less than the model believes.
    """
    factor = model.posterior(users).factor
    covariance = torch.cholesky_inverse(factor)  # [B, T, D, D]
    means = model.means.transpose(0, 1)  # [T, I, D]
    f = torch.cat([means[..., :-1], torch.ones_like(means[..., :1])], -1)
    share = model.raters / model.raters.sum().clamp(min=1)
    asked = f.mT @ (share[:, None] * f)
    said = ((f @ (covariance @ asked @ covariance)) * f).sum(-1)
    noise = 1 / model.noise[:, None] + ((f @ covariance) * f).sum(-1)
    gain = (said / noise).mean(1)
    return gain if known else gain * (model.raters / model.raters.max().clamp(min=1)).sqrt()
