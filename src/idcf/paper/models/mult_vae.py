"""Mult-VAE: a variational autoencoder of histories with a multinomial likelihood
(Liang, Krishnan, Hoffman & Jebara 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.models.layers.ragged import item_ridge_biases
from idcf.paper.layers.history_encoder import HistoryEncoder, OffsetEmbedding, item_log_popularity
from idcf.paper.model_options import MultVAEConfig
from idcf.types import Batch, Domain, Embeddings, LossTerms, Users

_INITIAL_LOG_VARIANCE = -4.0  # of log s²: at 0, noise hides the mean and training stays there


class MultVAE(TwoTower):
    """history → tanh → N(m, s²) → z → tanh → a score of every item.

    Without ratings the output is multinomial: scores are log probabilities. With ratings it is
    normal around b_u + b_i + μ + the decoder's output; the encoder reads residuals, as U-AutoRec.
    `binary` is the likely setting behind the paper's RMSE of 2.8 to 3.0: rated items are 1, random
    items 0, and predictions between the two are compared with ratings.
    """

    inductive: ClassVar[bool] = True
    steps: Tensor  # []: training steps so far, for annealing; saved with the weights

    def __init__(self, config: MultVAEConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items, self.predicts_ratings = domain.n_items, not domain.implicit
        self.mean = domain.mean if config.reads_ratings(domain) else 0.0
        self.trains_on_binary, self.beta, self.anneal = config.binary, config.beta, config.anneal
        self.head: Head = DotHead()
        bias_offset = _initial_item_bias(domain, config)
        self.items = OffsetEmbedding(bias_offset, config.hidden, config.hidden**-0.5)
        self.history_encoder = HistoryEncoder(config, domain, config.hidden)
        self.encoder_bias = nn.Parameter(torch.zeros(config.hidden))
        self.posterior_layer = nn.Linear(config.hidden, 2 * config.embedding_size)
        nn.init.constant_(self.posterior_layer.bias[config.embedding_size :], _INITIAL_LOG_VARIANCE)
        self.decoder = nn.Sequential(nn.Linear(config.embedding_size, config.hidden), nn.Tanh())
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def embed_users(self, users: Users) -> Embeddings:
        """Decode z, drawn from the posterior in training, else its mean. Without ratings the bias
        normalizes the scores to log probabilities."""
        encoded: Embeddings = self.history_encoder(users.history, self.items.bias)
        z, log_variance = self._posterior_parameters(encoded)
        if self.training:
            z = z + torch.randn_like(z) * (log_variance / 2).exp()
        vector = self.decoder(z)
        if self.predicts_ratings:
            return Embeddings(vector, encoded.bias)
        logits = self.head.score_all_pairs(vector, self.items.vector) + self.items.bias
        return Embeddings(vector, -logits.float().logsumexp(-1))

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Look up the output weights and the biases of items; `exclude_users` is ignored."""
        embeddings: Embeddings = self.items(items)
        return embeddings

    def loss_terms(self, batch: Batch) -> LossTerms:
        """Return the negative log-likelihood and the KL divergence: with ratings the squared error,
        else that of a multinomial, which needs only the positives, first in a row."""
        scores = self(batch.users, batch.items, batch.owner)
        if self.predicts_ratings:
            n_pairs = batch.n_rows * scores.shape[1]
            terms: LossTerms = {"mse": (scores - batch.labels).square().sum() / n_pairs}
        else:
            terms = {"multinomial": -scores[:, 0].sum() / batch.n_rows}
        return {**terms, "kl": self.kl_divergence(batch.users).sum() / batch.n_rows}

    def kl_divergence(self, users: Users) -> Tensor:
        """Return β KL(N(m, s²) ‖ N(0, 1)) of each user [B], and count a training step. Encoding the
        history again, with another dropout, leaves the expected loss unchanged."""
        mean, log_variance = self._posterior_parameters(
            self.history_encoder(users.history, self.items.bias)
        )
        weight = self.beta * (self.steps / max(self.anneal, 1)).clamp(max=1)
        if self.training:
            self.steps += 1
        return weight * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2

    def _posterior_parameters(self, encoded: Embeddings) -> tuple[Tensor, Tensor]:
        """Return m and log s²: [B, D] each."""
        hidden = torch.tanh(encoded.vector + self.encoder_bias)
        mean, log_variance = self.posterior_layer(hidden).chunk(2, -1)
        return mean, log_variance


def _initial_item_bias(domain: Domain, config: MultVAEConfig) -> Tensor:
    """Return fixed item biases [I]: log popularity, 0 for binary ratings, or ridge biases."""
    if domain.implicit:
        return item_log_popularity(domain)
    if config.binary:
        return torch.zeros(domain.n_items)
    return item_ridge_biases(domain, config.shrinkage)
