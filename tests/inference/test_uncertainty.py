"""The quick way to deviations against the model's own."""

from __future__ import annotations

import numpy as np
import torch

from idcf.data.history_reader import Read, as_users
from idcf.inference.kernels import Evidence
from idcf.inference.topk import Exact
from idcf.inference.uncertainty import Sure
from idcf.models.bayes import Bayes, BayesConfig, Moments
from idcf.testing.synthetic import checkerboard

torch.set_num_threads(1)
ITEMS, BLOCKS, SIZE = 37, 3, 5


def drawn() -> Bayes:
    """A posterior whose every tensor matters."""
    torch.manual_seed(0)
    domain = checkerboard(50, ITEMS, np.random.default_rng(0)).domain()
    model = Bayes(BayesConfig(embedding_size=SIZE - 1, blocks=BLOCKS, rank=3), domain)
    root = torch.randn(ITEMS, BLOCKS, SIZE, SIZE) * 0.2
    found = Moments.of(torch.randn(ITEMS, BLOCKS, SIZE) * 0.5, root @ root.mT)
    model.means.copy_(found.means)
    model.seconds.copy_(found.seconds)
    for tensor in (model.link, model.basis, model.usual, model.selection, model.average):
        tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.noise.copy_(torch.rand(BLOCKS) + 0.5)
    model.stretch.fill_(1.2)
    return model


def test_deviations_and_vectors_equal_the_models() -> None:
    model, rng = drawn(), np.random.default_rng(1)
    reads = [
        Read(np.sort(rng.choice(ITEMS, n, replace=False)), rng.integers(1, 6, n).astype(np.float32))
        for n in (1, 2, 9, 30)
    ]
    users, rows = as_users(reads), torch.from_numpy(rng.integers(0, ITEMS, (4, 7)))
    sure = Sure(model)
    belief = sure.believe(users)
    slow = model.deviation(users, rows, torch.arange(4))
    torch.testing.assert_close(sure(belief, rows), slow, rtol=1e-5, atol=1e-5)
    for quick, plain in zip(sure.embed(users, belief), model.embed_users(users), strict=True):
        torch.testing.assert_close(quick, plain)
    index = Exact(model)
    found, whole = (
        index.search(sure.embed(users, belief), 5, users.history),
        index.top(users, 5, users.history),
    )
    assert torch.equal(found.rows, whole.rows)
    torch.testing.assert_close(found.scores, whole.scores)
    assert isinstance(index.way, Evidence)
    for read, asked, expected in zip(reads, rows.numpy(), slow.numpy(), strict=True):
        alone = sure.one(index.way, (read.rows, read.values), asked)
        np.testing.assert_allclose(alone, expected, rtol=1e-4)
