"""A plain implementation of IDCF-NN's adaption stage (extrapolation), in the published data flow.

It is the slow side of the ratios in `adaption.py`: straightforward and vectorized over the batch,
written from a description of the data flow alone. A batch consists of rating rows. Each row carries
its user's history as a Python list, cut to 100 random items, collated and padded; each row and head
gathers 200 key users and projects them; the contrastive loss runs over the rows of the batch.

It is neither part of the library nor the authors' code, and it does not reproduce their figures or
times. It leaves out their bugs: padding is masked, inference is not random, and values are W_v p_u
instead of W_v W_k p_u. Time it on idle cores or with one thread: with a thread per core, one other
busy process slows it by a factor of twenty.

Shapes: B rows, S sampled key users, K key users, T longest history of the batch, D embedding size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence

Ints = NDArray[np.int64]
CONTRAST, HISTORY_CAP = 10.0, 100


class Rows(NamedTuple):
    """Rating rows as columns."""

    user: Ints
    item: Ints
    rating: NDArray[np.float32]

    def take(self, index: Ints | slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.user[index], self.item[index], self.rating[index])


class RelationHead(nn.Module):
    """One attention head: the mean of W_v p, weighted by the softmax of <W_q d, W_k p>."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.empty(size, size)) for _ in range(3))

    def forward(self, pooled: Tensor, keys: Tensor) -> Tensor:
        """Map pooled histories [B, D] and keys [B, S, D] to [B, D]; keys [1, K, D] are shared."""
        scores = (keys @ self.w_k) @ (pooled @ self.w_q).unsqueeze(-1)
        return (scores.softmax(dim=1).transpose(1, 2) @ (keys @ self.w_v)).squeeze(1)


class PlainIDCF(nn.Module):
    """f = (p·q + MLP[p | q | p*q]) / 2 + b_u + b_i, with p induced from the history.

    `mlp` holds the weight and bias of each layer, as in `nn.Linear`. The embedding tables and the
    item biases are frozen; the user biases, the MLP and the relation weights are trained. All
    inputs are copied.
    """

    def __init__(
        self,
        users_table: Tensor,
        items_table: Tensor,
        user_bias: Tensor,
        item_bias: Tensor,
        mlp: Sequence[tuple[Tensor, Tensor]],
        key_users: Tensor,
        heads: int = 4,
        samples: int = 200,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        size, self.samples = users_table.shape[1], samples
        self.users_table = nn.Parameter(users_table.detach().clone(), requires_grad=False)
        self.items_table = nn.Parameter(items_table.detach().clone(), requires_grad=False)
        self.key_table = nn.Parameter(users_table.detach()[key_users], requires_grad=False)
        self.item_bias = nn.Parameter(item_bias.detach().clone(), requires_grad=False)
        self.user_bias = nn.Parameter(user_bias.detach().clone())
        self.heads = nn.ModuleList(RelationHead(size) for _ in range(heads))
        self.w_o = nn.Parameter(torch.empty(heads * size, size))
        for parameter in [*self.heads.parameters(), self.w_o]:
            nn.init.xavier_normal_(parameter, generator=generator)
        layers: list[nn.Module] = []
        for weight, bias in mlp:
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
            layers += [layer, nn.Tanh()]
        self.mlp = nn.Sequential(*layers[:-1])

    def induce(self, padded: Tensor, lengths: Tensor, draw: torch.Generator | None) -> Tensor:
        """Return user vectors [B, D] from histories [B, T]; None for `draw` attends to all keys."""
        mask = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
        summed = (self.items_table[padded] * mask[..., None]).sum(dim=1)
        pooled = summed / lengths.clamp(min=1)[:, None]
        n_keys, shape = len(self.key_table), (len(padded), self.samples)
        outputs = []
        for head in self.heads:
            keys = self.key_table[None]
            if draw is not None:
                sampled = torch.randint(n_keys, shape, generator=draw, device=padded.device)
                keys = self.key_table[sampled]
            outputs.append(head(pooled, keys))
        return torch.cat(outputs, dim=-1) @ self.w_o

    def match(self, p: Tensor, user: Tensor, item: Tensor) -> Tensor:
        """Return the ratings [B] of items by users with the induced vectors p [B, D]."""
        q = self.items_table[item]
        product = p * q
        deep: Tensor = self.mlp(torch.cat([p, q, product], dim=-1)).squeeze(-1)
        return (product.sum(dim=-1) + deep) / 2 + self.user_bias[user] + self.item_bias[item]


def collate(
    rows: Rows, histories: list[list[int]], device: torch.device, rng: np.random.Generator | None
) -> list[Tensor]:
    """Return padded histories [B, T], their lengths [B] and the columns of the rows [B].

    With an rng, a history is cut to `HISTORY_CAP` random items.
    """
    ragged: list[Tensor] = []
    for user in rows.user.tolist():
        history = histories[user]
        if rng is not None and len(history) > HISTORY_CAP:
            ragged.append(torch.from_numpy(rng.choice(history, HISTORY_CAP, replace=False)))
        else:
            ragged.append(torch.tensor(history, dtype=torch.int64))
    padded, lengths = pad_sequence(ragged, batch_first=True), torch.tensor([*map(len, ragged)])
    return [x.to(device) for x in (padded, lengths, *map(torch.from_numpy, rows))]


def train_epoch(
    model: PlainIDCF,
    optimizer: torch.optim.Optimizer,
    rows: Rows,
    histories: list[list[int]],
    batch_size: int = 256,
    *,
    rng: np.random.Generator,
    max_batches: int | None = None,
) -> tuple[float, float]:
    """Train on the rows once, or on the first `max_batches`; return the mean loss and seconds."""
    device = model.users_table.device
    draw = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
    start, total = time.perf_counter(), torch.zeros((), device=device)
    order = rng.permutation(len(rows.user))
    begins = range(0, len(order), batch_size)[:max_batches]
    for begin in begins:
        batch = rows.take(order[begin : begin + batch_size])
        padded, lengths, user, item, rating = collate(batch, histories, device, rng)
        p = model.induce(padded, lengths, draw)
        errors = mse_loss(model.match(p, user, item), rating, reduction="sum")
        logits = p @ model.users_table[user].T
        loss = errors + CONTRAST * cross_entropy(logits, torch.arange(len(user), device=device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.detach()
    return float(total) / len(begins), time.perf_counter() - start  # float() awaits the device


@torch.no_grad()
def rmse(model: PlainIDCF, rows: Rows, histories: list[list[int]], batch_size: int = 256) -> float:
    """Return the RMSE over the rows, from whole histories and all key users."""
    device, squares = model.users_table.device, 0.0
    for begin in range(0, len(rows.user), batch_size):
        batch = rows.take(slice(begin, begin + batch_size))
        padded, lengths, user, item, rating = collate(batch, histories, device, None)
        scores = model.match(model.induce(padded, lengths, None), user, item)
        squares += float(mse_loss(scores, rating, reduction="sum"))
    return float(np.sqrt(squares / len(rows.user)))


def main(n_batches: int = 15, size: int = 16) -> None:
    """Time some batches of ML-100K with random weights and print the time of an epoch."""
    if not (data := os.environ.get("IDCF_DATA")):
        raise SystemExit("IDCF_DATA is not set: give the folder that holds ml-100k/u1.base")
    torch.set_num_threads(2)
    raw = np.loadtxt(Path(data) / "ml-100k" / "u1.base", dtype=np.int64)
    all_rows = Rows(raw[:, 0] - 1, raw[:, 1] - 1, raw[:, 2].astype(np.float32))
    histories = [all_rows.item[all_rows.user == u].tolist() for u in range(943)]
    is_key = np.bincount(all_rows.user)[all_rows.user] >= 30
    key_rows = all_rows.take(np.flatnonzero(is_key))
    query_rows = all_rows.take(np.flatnonzero(~is_key))
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(n, size, generator=generator) / 10 for n in (943, 1682))
    widths = [(32, 3 * size), (16, 32), (1, 16)]
    mlp = [(torch.randn(o, i, generator=generator) / i**0.5, torch.zeros(o)) for o, i in widths]
    biases = torch.zeros(943), torch.full((1682,), float(key_rows.rating.mean()))
    keys = torch.from_numpy(np.unique(key_rows.user))
    model = PlainIDCF(p, q, *biases, mlp, keys, generator=generator)
    optimizer, rng = torch.optim.Adam(model.parameters(), lr=0.001), np.random.default_rng(0)
    call = partial(
        train_epoch, model, optimizer, key_rows, histories, rng=rng, max_batches=n_batches
    )
    seconds = sorted(call()[1] / n_batches * -(-len(key_rows.user) // 256) for _ in range(6))
    print(f"{len(keys)} key users, {len(key_rows.user)} rows, {torch.get_num_threads()} threads:")
    print(f"{seconds[0]:.1f} s an epoch (best of {len(seconds)} trials; worst {seconds[-1]:.1f})")
    print(f"RMSE of the query users, random weights: {rmse(model, query_rows, histories):.3f}")


if __name__ == "__main__":
    main()
