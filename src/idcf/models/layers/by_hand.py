"""A step of adaption with its gradient, by hand.

A step of 256 rows is so small that recording operations and replaying them costs more than they
do. This is the same loss as `train.objectives.adapt` makes of recorded operations, for the model
that is trained most: dot attention to key users, a perceptron, tables that rest, and a bias that
the history corrects. All else, and every other device, takes the recorded way; tests compare them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.layers.embedding import Table
from idcf.types import Batch, Read, Ready


def wanted() -> bool:
    """Do operations run as they are written? A compiler records once, mixed precision casts."""
    return not (torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"))


def ready(
    batches: Sequence[Batch],
    reads: Sequence[Read],
    keys: Tensor,
    scale: Tensor,
    tables: tuple[Table, Table],
    mean: float,
) -> Iterator[Ready]:
    """What several steps read, at once: key users [steps, H, S, D + 1] and the scale of the
    scores. Nobody's history is empty."""
    pairs = [*zip(batches, reads, strict=True)]
    rows = [r.owner.shape[0] + b.owner.shape[0] for b, r in pairs]
    people = [r.share.shape[0] for r in reads]
    who = torch.cat([x for b, r in pairs for x in (r.owner, b.owner)])
    what = torch.cat([x for b in batches for x in (b.users.history.items, b.items.squeeze(1))])
    rating = torch.cat([x for b in batches for x in (b.users.history.values, b.labels.squeeze(1))])
    query, share = torch.cat([r.query for r in reads]), torch.cat([r.share for r in reads])
    item, own = tables[1](what), tables[0](torch.cat([b.users.ids for b in batches])).vector
    parts = zip(
        (query * scale).expand(keys.shape[1], -1, -1).split_with_sizes(people, 1),
        keys.unbind(0),
        who.split_with_sizes(rows),
        item.vector.split_with_sizes(rows),
        (rating - (item.bias + mean)).split_with_sizes(rows),
        share.split_with_sizes(people),
        own.split_with_sizes(people),
        map(_again, (b.users.ids for b in batches)),
        strict=True,
    )
    for (batch, read), mine in zip(pairs, parts, strict=True):
        yield Ready(read.owner, batch.owner, *mine)


def _again(ids: Tensor) -> Tensor | None:
    """Who is the same person, elsewhere in the batch; None where nobody is."""
    if len(set(ids.tolist())) == ids.shape[0]:
        return None
    return (ids[:, None] == ids).fill_diagonal_(False)


def step(ready: Ready, contrast: float, strength: float, weights: Sequence[Tensor]) -> Tensor:
    """Squared error and `contrast` of W_q, W_k, W_v, W_o, then weight and bias of each layer.

    The gradient is added to theirs at once: an engine that is handed it takes its time over it.
    """
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    kept: list[Any] = [weight.grad for weight in weights]
    # in inference mode each operation costs a sixth less than without gradients
    with torch.inference_mode():
        loss, found = _step(ready, contrast, strength, weights[:4], weights[4::2], weights[5::2])
        torch._foreach_add_(kept, found)
    return loss


def _step(
    ready: Ready,
    contrast: float,
    strength: float,
    relation: Sequence[Tensor],
    layers: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The loss, and the gradient of each weight. `on_x` is the gradient on x."""
    heard, asked, d, keys, who, q, left, share, own, again = ready
    n, rows, size = heard.shape[0], asked.shape[0], q.shape[1]

    # h_w: Σ_h softmax(d W_q W_kᵀ Pᵀ) P W_v W_o, as in Relation.forward
    w_q, w_k, w_v = relation[:3]
    w_o, across = relation[3].view_as(w_v), keys.mT
    give = torch.bmm(w_v, w_o)
    c = torch.softmax(torch.bmm(torch.bmm(d, torch.bmm(w_q, w_k.mT)), across), -1)
    mixed = torch.bmm(c, keys)
    latent = torch.bmm(mixed, give).sum(0)
    induced, bias = latent.narrow(1, 0, size), latent.select(1, size)

    # f_θ: ½ (p·q + nn([p ‖ q ‖ p⊙q])), as in Perceptron.forward, of what was rated and is asked
    p = induced.index_select(0, who)
    both = p * q
    hears = [torch.cat([p, q, both], 1)]
    for weight, start in zip(layers[:-1], biases[:-1], strict=True):
        hears.append(F.linear(hears[-1], weight, start).tanh_())
    deep = F.linear(hears[-1], layers[-1], biases[-1]).squeeze(1)
    left = left - torch.lerp(both.sum(1), deep, 0.5)

    # the bias is what histories leave, shrunk, as in IDCF.answer
    of_history, of_asked = left.split_with_sizes([n, rows])
    told = (bias * strength).index_add_(0, heard, of_history).mul_(share)
    miss = (told.index_select(0, asked) - of_asked).div_(rows)
    loss = torch.dot(miss, miss) * rows

    # and back; half of it to begin with, which is what f_θ halves
    lean = torch.zeros_like(share).index_add_(0, asked, miss, alpha=-1).mul_(share)
    half = on = torch.cat([lean.index_select(0, heard), miss]).unsqueeze(1)
    on_layers: list[Tensor] = []
    for weight, x in zip(reversed(layers), reversed(hears), strict=True):
        on_layers = [torch.mm(on.mT, x), on.sum(0), *on_layers]
        on = torch.mm(on, weight)
        if x is not hears[0]:
            on = torch.ops.aten.tanh_backward(on, x)
    by_p, _, by_both = on.chunk(3, 1)
    on_p = torch.addcmul(by_p, by_both + half, q)
    on_induced = torch.zeros_like(own).index_add_(0, who, on_p)
    if contrast:
        loss = loss.add_(_contrast(own, induced, again, contrast, on_induced))
    on_latent = torch.cat([on_induced, (lean * (-2 * strength)).unsqueeze(1)], 1).expand_as(mixed)
    on_give, on_mixed = torch.bmm(mixed.mT, on_latent), torch.bmm(on_latent, give.mT)
    # through the softmax: c (x - Σ c x), where Σ c x is known before x = on_mixed Pᵀ
    mean = (on_mixed * mixed).sum(-1, keepdim=True)
    on_score = torch.bmm(on_mixed, across).sub_(mean).mul_(c)
    on_ask = torch.bmm(d.mT, torch.bmm(on_score, keys))
    return loss, [
        torch.bmm(on_ask, w_k),
        torch.bmm(on_ask.mT, w_q),
        torch.bmm(on_give, w_o.mT),
        torch.bmm(w_v.mT, on_give).view_as(relation[3]),
        *on_layers,
    ]


def _contrast(
    own: Tensor, induced: Tensor, again: Tensor | None, contrast: float, on_induced: Tensor
) -> Tensor:
    """The mean of -log softmax of ⟨p_u, p̃_u'⟩ at u' = u, as in train.objectives; its gradient is
    added to `on_induced`."""
    weigh = contrast / own.shape[0]
    logit = torch.mm(own, induced.mT)
    if again is not None:
        logit.masked_fill_(again, -torch.inf)
    chance = torch.log_softmax(logit, 1)
    loss = chance.trace() * -weigh
    on_induced.add_(own, alpha=-weigh).addmm_(chance.exp_().mT, own, alpha=weigh)
    return loss
