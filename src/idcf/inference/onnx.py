"""A trained model as one ONNX file: history in, vector and scores out, no Python needed.

A history is dense there, because that is what every runtime can do: `ratings` [B, I], read only
where `rated` [B, I] is 1 and not 0, columns in the order of the file's metadata `item_ids`
(JSON). Without ratings `rated` is all there is. Out come `vector` [B, D], as `Recommender.embed`
gives it, and `scores` [B, I]. ONNX has no way to solve equations; `solve` here is elimination,
written out.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import Artifact
from idcf.models.base import Model
from idcf.models.baselines import FoldIn
from idcf.models.bayes import Bayes
from idcf.models.idcf import IDCF, part
from idcf.models.matrix_factorization import Factor

OPSET = 18


def export(found: Artifact, path: str | Path) -> Path:
    """Write the file, whole or not at all."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"to write ONNX, {error.name!r} is needed: pip install 'idcf[onnx]'"
        ) from None
    target = Path(path).expanduser()
    graph = dense(found.model)
    made = _traced(graph, found.model).model_proto
    ids = json.dumps(found.items.ids)
    onnx.helper.set_model_props(made, {"item_ids": ids, "model": found.manifest.model})
    piece = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        onnx.save_model(made, piece)
        piece.replace(target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error}") from None
    finally:
        piece.unlink(missing_ok=True)
    return target


def dense(model: Model) -> nn.Module:
    """The model with dense histories, on the CPU."""
    own = deepcopy(model).cpu().eval().requires_grad_(False)
    if isinstance(own, FoldIn):
        return DenseFoldIn(own)
    if isinstance(own, Bayes):
        return DenseBayes(own)
    if isinstance(own, IDCF) and isinstance(own.backbone, Factor) and own.paths is None:
        return DenseRelation(own)
    what = type(own.backbone if isinstance(own, IDCF) else own).__name__
    if isinstance(own, IDCF) and own.paths is not None:
        what = "meta-path"
    raise ConfigError(
        f"{what} has no ONNX form; idcf-dot, idcf-nn, idcf-bayes and als can be exported"
    )


def _traced(graph: nn.Module, model: Model) -> Any:
    example = torch.zeros(2, model.n_items)
    example[0, 0] = 1.0  # somebody, and nobody
    names = ["rated", "ratings"] if model.rates else ["rated"]
    people = torch.export.Dim("people", min=1)
    with _quiet(), torch.no_grad():
        return torch.onnx.export(
            graph,
            tuple(example.clone() for _ in names),
            input_names=names,
            output_names=["vector", "scores"],
            dynamic_shapes=[{0: people}] * len(names),
            opset_version=OPSET,
            dynamo=True,
            optimize=False,  # runtimes do it when they load, and sooner
            verbose=False,
        )


class DenseFoldIn(nn.Module):
    def __init__(self, model: FoldIn) -> None:
        super().__init__()
        self.model = model

    def forward(self, rated: Tensor, ratings: Tensor | None = None) -> tuple[Tensor, Tensor]:
        model, base = self.model, self.model.base
        n = rated.sum(1, keepdim=True)
        silent = (n == 0).to(rated.dtype)
        bias = torch.zeros_like(n)
        if ratings is not None:
            own = (ratings - base.mean - base.item_bias) * rated
            if base.strength != float("inf"):
                bias = own.sum(1, keepdim=True) / (n + base.strength).clamp(min=1e-9)
            own, silent = own - bias * rated, silent * 0
        else:
            own = (model.target - base.item_bias) * rated
        outer = (rated[:, None] * model.factors.T) @ model.factors
        left = model.gram + model.alpha * outer + n[..., None] * model.rivals[:, :-1]
        right = model.prior + model.alpha * (own @ model.factors) + n * model.rivals[:, -1]
        vector = torch.cat([solve(left, right) * (1 - silent), silent], 1)
        items = torch.cat([model.factors, model.popularity[:, None]], 1)
        return vector, vector @ items.T + bias + (base.item_bias + model.mean)


class DenseBayes(nn.Module):
    def __init__(self, model: Bayes) -> None:
        super().__init__()
        self.model, self.items = model, model.catalogue()

    def forward(self, rated: Tensor, ratings: Tensor) -> tuple[Tensor, Tensor]:
        model, (blocks, size) = self.model, self.model.average.shape
        n = rated.sum(1, keepdim=True)
        own = (ratings - model.mean) * rated
        means = model.means.flatten(1)
        first = (rated @ means).view(-1, blocks, size)
        second = (rated @ model.seconds.flatten(1)).view(-1, blocks, model.seconds.shape[2])
        cross = second[..., model.triangle]
        upper, lower = cross[..., :-1, :-1], first[..., :-1]
        count = n[:, None].expand(-1, blocks, 1)
        left = torch.cat(
            [
                torch.cat([upper, lower[..., None]], -1),
                torch.cat([lower, count], -1)[..., None, :],
            ],
            -2,
        )
        right = torch.cat(
            [
                (own @ means).view(-1, blocks, size)[..., :-1] - cross[..., -1][..., :-1],
                own.sum(1, keepdim=True)[:, None] - first[..., -1:],
            ],
            -1,
        )
        left = model.noise[:, None, None] * left + model.precision
        mean = solve(left, model.noise[:, None] * right + self._prior(rated, n))
        silent = (n == 0).to(rated.dtype)
        rest = 1 / (1 + n)
        offset = model.selection[0] * rest.sqrt() + model.selection[1] * rest
        bias = (1 - silent) * (mean[..., -1].mean(1, keepdim=True) + offset)
        vector = torch.cat([mean[..., :-1].flatten(1) * (1 - silent), silent], 1)
        return vector, vector @ self.items.vector.T + bias + (self.items.bias + model.mean)

    def _prior(self, rated: Tensor, n: Tensor) -> Tensor:
        """Nothing is known of a person here but their history."""
        model = self.model
        read = torch.cat([rated @ model.basis / n.clamp(min=1).sqrt(), n.log1p()], 1)
        read = (read - model.shift) / model.scale
        link = model.link[:, : 1 + read.shape[1]]
        said = (read @ link[:, 1:].transpose(0, 1).flatten(1)).view(-1, *model.average.shape)
        return link[:, 0] + said


class DenseRelation(nn.Module):
    def __init__(self, model: IDCF) -> None:
        super().__init__()
        self.model = model

    def forward(self, rated: Tensor, ratings: Tensor | None = None) -> tuple[Tensor, Tensor]:
        model, items = self.model, self.model.backbone.items
        n = rated.sum(1, keepdim=True)
        query = (
            self._read(rated, rated if ratings is None else ratings, n) - model.shift
        ) / model.spread
        latent = model.relation(query, model.keys, model.key_scale)
        vector, bias = part(torch.where(n == 0, model.average, latent))
        scores = model.head.all(vector, items.vector) + (items.bias + model.mean)
        if model.recognises:  # who comes has no bias of their own
            return vector, scores
        scores = scores + bias[:, None]
        if ratings is not None:
            left = ((ratings - scores) * rated).sum(1, keepdim=True)
            scores = scores + left / (n + model.config.bias_strength).clamp(min=1e-9)
        return vector, scores

    def _read(self, rated: Tensor, values: Tensor, n: Tensor) -> Tensor:
        model, items = self.model, self.model.backbone.items
        some = n.clamp(min=1)
        power = {"mean": 1.0, "sum": 0.0, "root": 0.5}[model.config.pooling]
        read = torch.cat([rated @ items.vector / some**power, some.log1p()], 1)
        if model.config.query == "items":
            return read
        own = (values - model.mean - items.bias - model.average[-1]) * rated
        return torch.cat([read, own @ items.vector / some**0.5], 1)


def solve(left: Tensor, right: Tensor) -> Tensor:
    """left⁻¹ right for positive definite left [..., D, D], by elimination: no pivots needed."""
    both, eye = torch.cat([left, right[..., None]], -1), torch.eye(left.shape[-1])
    for k, others in enumerate(1 - eye):
        row = both[..., k, :] / both[..., k, k, None]
        both = both - (both[..., k] * others)[..., None] * row[..., None, :]
    return both[..., -1] / (both[..., :-1] * eye).sum(-1)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of itself, in warnings and in logs; none of it is for our users."""
    loggers = [logging.getLogger(x) for x in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [x.level for x in loggers]
    for x in loggers:
        x.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for x, level in zip(loggers, before, strict=True):
            x.setLevel(level)
