"""A trained model as one ONNX file: histories in, user vectors and scores out.

Histories are dense, because every runtime supports that: input `rated` [B, I] is 1 for the items of
the history and 0 elsewhere, input `ratings` [B, I] is read only where `rated` is 1, and a model of
implicit feedback has no `ratings`. The columns are in the order of the item ids in the metadata of
the file (`item_ids`, as JSON). Outputs are `scores` [B, I], those of `Recommender.predict`, and
before them `vector` [B, D], the result of `Recommender.embed`, if the model has vectors of users.
ONNX cannot solve linear systems, so that `solve` writes elimination out.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idcf.errors import ConfigError, DataError, require_extra
from idcf.files import atomic_path
from idcf.inference.artifact import Artifact
from idcf.models.base import Model, TwoTower
from idcf.models.baselines import FoldInModel, ItemItemModel
from idcf.models.bayes import BayesModel
from idcf.models.idcf import IDCF, POOLING_POWER
from idcf.models.matrix_factorization import MatrixFactorization
from idcf.models.take_up import TakeUpModel
from idcf.types import History, Users

OPSET = 18
_MAX_DENSE_ITEMS = 20_000  # 1.6 GB of weights; a file of ONNX holds at most 2 GB
_MAX_CORRECTED_ITEMS = 5000  # a matrix of all pairs of items, 4 bytes each, goes into the file


def export_onnx(artifact: Artifact, path: str | Path) -> Path:
    """Write the ONNX file of a model atomically, and return its path.

    ConfigError: the model has no ONNX form, or a package for ONNX is missing.
    """
    require_extra("onnx", "onnx", "onnxscript")
    import onnx

    target = Path(path).expanduser()
    proto = _export_graph(to_dense_model(artifact.model), artifact.model).model_proto
    item_ids = json.dumps(artifact.items.ids)
    onnx.helper.set_model_props(
        proto, {"item_ids": item_ids, "model": artifact.manifest.fitted_model}
    )
    try:
        with atomic_path(target) as temporary:
            onnx.save_model(proto, temporary)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}; choose another file") from None
    return target


def to_dense_model(model: Model) -> nn.Module:
    """Return a copy of a model that takes dense histories, on the CPU."""
    model = deepcopy(model).cpu().eval().requires_grad_(False)
    build = _DENSE_MODELS.get(type(model))
    if build is None:
        raise _no_onnx_form(type(model).__name__)
    return build(model)


def _no_onnx_form(name: str) -> ConfigError:
    """Return the error of a model, a backbone or another part that has no ONNX form."""
    return ConfigError(
        f"{name} has no ONNX form; idcf-bayes, als, idcf-dot and idcf-nn can be exported and, on "
        "clicks, idcf-takeup, ease, slim and item-knn"
    )


def _export_graph(graph: nn.Module, model: Model) -> Any:
    """Return the ONNX program of a dense model."""
    example = torch.zeros(2, model.n_items)
    example[0, 0] = 1.0  # one user with a history, one without
    names = ["rated", "ratings"] if model.predicts_ratings else ["rated"]
    outputs = ["vector", "scores"] if isinstance(model, TwoTower) else ["scores"]
    n_users = torch.export.Dim("users", min=1)
    with _silence_exporter(), torch.no_grad():
        return torch.onnx.export(
            graph,
            tuple(example.clone() for _ in names),
            input_names=names,
            output_names=outputs,
            dynamic_shapes=[{0: n_users}] * len(names),
            opset_version=OPSET,
            dynamo=True,
            optimize=False,  # runtimes do it when they load, and faster
            verbose=False,
        )


class DenseFoldIn(nn.Module):
    """`FoldInModel` for dense histories."""

    def __init__(self, model: FoldInModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, rated: Tensor, ratings: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return user vectors [B, D + 1] and scores [B, I] for dense histories [B, I].

        The last entry of a vector is 1 for an empty history of implicit feedback, whose items are
        scored by popularity, else 0.
        """
        model, base = self.model, self.model.bias_model
        n = rated.sum(1, keepdim=True)
        is_popular = (n == 0).to(rated.dtype)
        bias = torch.zeros_like(n)
        if ratings is not None:
            residuals = (ratings - base.mean - base.item_bias) * rated
            if base.shrinkage != float("inf"):
                bias = residuals.sum(1, keepdim=True) / (n + base.shrinkage).clamp(min=1e-9)
            residuals, is_popular = residuals - bias * rated, is_popular * 0
        else:
            residuals = (model.positive_target - base.item_bias) * rated
        outer = (rated[:, None] * model.factors.T) @ model.factors
        matrix = model.gram + model.alpha * outer + n[..., None] * model.negative_terms[:, :-1]
        rhs = model.prior_rhs + model.alpha * (residuals @ model.factors)
        rhs = rhs + n * model.negative_terms[:, -1]
        vector = torch.cat([solve(matrix, rhs) * (1 - is_popular), is_popular], 1)
        items = torch.cat([model.factors, model.popularity[:, None]], 1)
        offsets = base.item_bias + model.mean + model.popularity_bias()
        return vector, vector @ items.T + bias + offsets


class DenseBayes(nn.Module):
    """`BayesModel` for dense histories, without user features."""

    def __init__(self, model: BayesModel) -> None:
        super().__init__()
        self.model, self.items = model, model.embed_catalog()
        self.neighbors: Tensor | None = None
        if model.corrects_scores():
            if model.n_items > _MAX_CORRECTED_ITEMS:
                raise ConfigError(
                    f"idcf-bayes with neighbors has no ONNX form for {model.n_items:,} items, "
                    f"only for up to {_MAX_CORRECTED_ITEMS:,}; train with neighbors=0 to export it"
                )
            self.neighbors = torch.zeros(model.n_items, model.n_items)
            self.neighbors.scatter_add_(1, model.neighbor_items, model.neighbor_weights)

    def forward(self, rated: Tensor, ratings: Tensor) -> tuple[Tensor, Tensor]:
        """Return user vectors [B, D] and scores [B, I] for dense histories [B, I]."""
        model, (blocks, size) = self.model, self.model.mean_key_latent.shape
        n = rated.sum(1, keepdim=True)
        residuals = (ratings - model.mean) * rated
        means = model.means.flatten(1)
        first = (rated @ means).view(-1, blocks, size)
        n_packed = model.second_moments.shape[2]
        second = (rated @ model.second_moments.flatten(1)).view(-1, blocks, n_packed)
        products = second[..., model.packed_index]
        upper, lower = products[..., :-1, :-1], first[..., :-1]
        last_row = torch.cat([lower, n[:, None].expand(-1, blocks, 1)], -1)[..., None, :]
        matrix = torch.cat([torch.cat([upper, lower[..., None]], -1), last_row], -2)
        rhs_vector = (residuals @ means).view(-1, blocks, size) - products[..., -1]
        rhs_bias = residuals.sum(1, keepdim=True)[:, None] - first[..., -1:]
        rhs = torch.cat([rhs_vector[..., :-1], rhs_bias], -1)
        precision = model.noise_precision[:, None, None] * matrix + model.precision
        mean = solve(precision, model.noise_precision[:, None] * rhs + self._prior(rated, n))
        is_empty, inverse = (n == 0).to(rated.dtype), 1 / (1 + n)
        coefficients = model.selection_coefficients
        offset = coefficients[0] * inverse.sqrt() + coefficients[1] * inverse
        bias = (1 - is_empty) * (mean[..., -1].mean(1, keepdim=True) + offset)
        vector = torch.cat([mean[..., :-1].flatten(1) * (1 - is_empty), is_empty], 1)
        scores = vector @ self.items.vector.T + bias + (self.items.bias + model.mean)
        if self.neighbors is None:
            return vector, scores
        errors = model.neighbor_scale * (ratings - scores) * rated
        return vector, scores + errors @ self.neighbors / (1 + rated @ self.neighbors)

    def _prior(self, rated: Tensor, n: Tensor) -> Tensor:
        """Return precision times mean of the prior of each user: [B, T, D]."""
        model = self.model
        features = torch.cat([rated @ model.basis / n.clamp(min=1).sqrt(), n.log1p()], 1)
        features = (features - model.feature_mean) / model.feature_std
        link = model.prior_information[:, : 1 + features.shape[1]]
        effect = features @ link[:, 1:].transpose(0, 1).flatten(1)
        return link[:, 0] + effect.view(-1, *model.mean_key_latent.shape)


class DenseIDCF(nn.Module):
    """`IDCF` around matrix factorization without meta-paths, for dense histories."""

    def __init__(self, model: IDCF) -> None:
        super().__init__()
        if model.meta_path is not None:
            raise _no_onnx_form("meta-path")
        if not isinstance(model.backbone, MatrixFactorization):
            raise _no_onnx_form(type(model.backbone).__name__)
        self.model = model

    def forward(self, rated: Tensor, ratings: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return user vectors [B, D] and scores [B, I] for dense histories [B, I]."""
        model, items = self.model, self.model.backbone.item_table
        n = rated.sum(1, keepdim=True)
        query = self._encode_history(rated, rated if ratings is None else ratings, n)
        query = (query - model.query_mean) / model.query_std
        latent = model.relation(query, model.key_latents, model.key_scale)
        vector, bias = model.split_latents(torch.where(n == 0, model.mean_key_latent, latent))
        scores = model.head.score_all_pairs(vector, items.vector) + (items.bias + model.mean)
        if model.has_user_parameters:  # then a new user has bias 0
            return vector, scores
        scores = scores + bias[:, None]
        if ratings is not None:
            residuals = ((ratings - scores) * rated).sum(1, keepdim=True)
            scores = scores + residuals / (n + model.config.bias_shrinkage).clamp(min=1e-9)
        return vector, scores

    def _encode_history(self, rated: Tensor, values: Tensor, n: Tensor) -> Tensor:
        """Return d_u' before standardization, as `IDCF.raw_query` does."""
        model, items = self.model, self.model.backbone.item_table
        n = n.clamp(min=1)
        parts = [rated @ items.vector / n ** POOLING_POWER[model.config.pooling]]
        if model.config.query_length:
            parts.append(n.log1p())
        if model.config.query == "ratings":
            residuals = (values - model.mean - items.bias - model.mean_key_bias) * rated
            parts.append(residuals @ items.vector / n**0.5)
        return torch.cat(parts, 1)


class DenseItemItem(nn.Module):
    """`ItemItemModel` for dense histories of implicit feedback."""

    def __init__(self, model: ItemItemModel) -> None:
        super().__init__()
        if model.predicts_ratings or model.rating_span:
            raise _no_onnx_form("ItemItemModel on ratings")
        _check_dense_size(model)
        self.popularity, self.weights = model.popularity, model.item_weights.to_dense()

    def forward(self, rated: Tensor) -> Tensor:
        """Return scores [B, I] for dense histories [B, I]."""
        is_empty = (rated.sum(1, keepdim=True) == 0).to(rated.dtype)
        return rated @ self.weights + is_empty * self.popularity


class DenseTakeUp(nn.Module):
    """`TakeUpModel` for dense histories, whose values are all 1."""

    def __init__(self, model: TakeUpModel) -> None:
        super().__init__()
        _check_dense_size(model)
        self.model, self.weights = model, model.item_weights.to_dense()
        rows = torch.arange(model.n_items)
        if model.has_factors:
            self.weights = self.weights + model.low_rank_weights.block(rows, rows)
        empty = Users(torch.full((1,), -1), History.empty(1))
        self.empty = model.score_catalog(empty)  # [1, I]

    def forward(self, rated: Tensor) -> Tensor:
        """Return probabilities [B, I] for dense histories [B, I]."""
        model, n = self.model, rated.sum(1, keepdim=True)
        t = ((rated @ self.weights + model.prior_scores) / model.score_unit).asinh()
        log_length, c = n.log1p().clamp(max=model.max_log_length), model.coefficients
        z = c[0] + c[1] * log_length + (c[2] + c[3] * log_length) * t
        return torch.where(n == 0, self.empty, self._logit(z).sigmoid())

    def _logit(self, z: Tensor) -> Tensor:
        """Return f(z) as a sum over the segments of f, of which the outer ones have no end."""
        knots, values = self.model.link_knots, self.model.link_logits
        slopes, n = values.diff() / knots.diff(), len(knots) - 1
        logit = values[0] + slopes[0] * (torch.minimum(z, knots[1]) - knots[0])
        for k in range(1, n):
            part = (z - knots[k]).clamp(min=0)
            if k < n - 1:
                part = torch.minimum(part, knots[k + 1] - knots[k])
            logit = logit + slopes[k] * part
        return logit


def _check_dense_size(model: Model) -> None:
    """Raise ConfigError if the weights between all items are too large for one ONNX file."""
    if model.n_items > _MAX_DENSE_ITEMS:
        raise ConfigError(
            f"export_onnx writes the weights between items as a matrix, and {model.n_items:,} "
            f"items are more than {_MAX_DENSE_ITEMS:,}; fit 'als', which has vectors instead"
        )


_DENSE_MODELS: Mapping[type[Model], Callable[[Any], nn.Module]] = {
    FoldInModel: DenseFoldIn,
    BayesModel: DenseBayes,
    IDCF: DenseIDCF,
    ItemItemModel: DenseItemItem,
    TakeUpModel: DenseTakeUp,
}


def solve(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Return matrix⁻¹ rhs for positive definite [..., D, D], by elimination without pivots."""
    augmented, eye = torch.cat([matrix, rhs[..., None]], -1), torch.eye(matrix.shape[-1])
    for k, other_rows in enumerate(1 - eye):
        row = augmented[..., k, :] / augmented[..., k, k, None]
        augmented = augmented - (augmented[..., k] * other_rows)[..., None] * row[..., None, :]
    return augmented[..., -1] / (augmented[..., :-1] * eye).sum(-1)


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress warnings and log messages of the exporter, which are about its own code."""
    loggers = [logging.getLogger(x) for x in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [x.level for x in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
