"""The state of a Markov chain of `solvers.bayes` as arrays, from which it goes on bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idcf.models.bayes import BLOCK_BUFFERS

if TYPE_CHECKING:
    from idcf.training.solvers.bayes import BlockAccumulator, GibbsSampler
    from idcf.training.solvers.blockwise_gibbs import BlockwiseSampler

_SIDES = ("users", "items")
_DRAWN = ("latents", "mean", "precision", "feature_weights")  # of a side
_SUMS = (*BLOCK_BUFFERS, "means", "second_moments")  # of the model

Arrays = Mapping[str, NDArray[Any]]


def chain_state(
    sampler: GibbsSampler | BlockwiseSampler, blocks: BlockAccumulator
) -> dict[str, NDArray[Any]]:
    """Return what the sampler has drawn, the sums of its sweeps, and the random numbers' states."""
    tensors = {"user_weights": sampler.user_weights, "generator": sampler.generator.get_state()}
    for side_name in _SIDES:
        side = getattr(sampler, side_name)
        tensors |= {f"{side_name}.{name}": getattr(side, name) for name in _DRAWN}
    tensors |= {f"model.{name}": getattr(blocks.model, name) for name in _SUMS}
    arrays = {name: x.cpu().numpy() for name, x in tensors.items()}
    arrays["noise_precision"] = np.array(sampler.noise_precision, np.float64)
    arrays["n_sweeps"] = np.array(sampler.n_sweeps)
    for name, rng in (("rng", sampler.rng), ("history_rng", blocks.rng)):
        arrays[name] = np.array(json.dumps(rng.bit_generator.state))
    return arrays


def restore_chain(
    sampler: GibbsSampler | BlockwiseSampler, blocks: BlockAccumulator, arrays: Arrays
) -> None:
    """Put a sampler and its sums into the state that `chain_state` returned."""

    def tensor(name: str, like: Tensor) -> Tensor:
        """Return a tensor of the state on the device of another."""
        return torch.from_numpy(arrays[name].copy()).to(like)

    for side_name in _SIDES:
        side = getattr(sampler, side_name)
        for name in _DRAWN:
            setattr(side, name, tensor(f"{side_name}.{name}", getattr(side, name)))
    for name in _SUMS:
        getattr(blocks.model, name).copy_(tensor(f"model.{name}", getattr(blocks.model, name)))
    sampler.user_weights = tensor("user_weights", sampler.user_weights)
    sampler.generator.set_state(torch.from_numpy(arrays["generator"].copy()))
    sampler.noise_precision = float(arrays["noise_precision"])
    sampler.n_sweeps = int(arrays["n_sweeps"])
    sampler.rng.bit_generator.state = json.loads(str(arrays["rng"]))
    blocks.rng.bit_generator.state = json.loads(str(arrays["history_rng"]))
