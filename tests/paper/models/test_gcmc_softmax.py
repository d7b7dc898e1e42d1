"""The original GC-MC against plain loops, and what must not leak."""

import pytest
import torch

from idcf.models.registry import configure, model_entry
from idcf.training.objectives import accuracy
from idcf.types import Batch, Domain, History, Users

torch.set_num_threads(1)

LEVELS = (1.0, 2.0, 4.0)
RATINGS = {(0, 0): 1.0, (0, 1): 4.0, (1, 1): 2.0, (1, 3): 4.0, (2, 0): 2.0, (2, 1): 1.0}
N_USERS, N_ITEMS = 4, 5  # user 3 and items 2, 4 have no edge


def raters() -> History:
    users = [sorted(u for u, i in RATINGS if i == item) for item in range(N_ITEMS)]
    values = [RATINGS[u, i] for i in range(N_ITEMS) for u in users[i]]
    starts = torch.tensor([0, *map(len, users)]).cumsum(0)
    return History(torch.tensor([u for some in users for u in some]), torch.tensor(values), starts)


def history(user: int, without: int = -1) -> list[tuple[int, float]]:
    return [(i, r) for (u, i), r in RATINGS.items() if u == user and i != without]


def people(*seen: tuple[int, list[tuple[int, float]]]) -> Users:
    items = [i for _, had in seen for i, _ in had]
    values = [r for _, had in seen for _, r in had]
    starts = torch.tensor([0, *(len(had) for _, had in seen)]).cumsum(0)
    ids = torch.tensor([u for u, _ in seen])
    return Users(ids, History(torch.tensor(items), torch.tensor(values), starts))


def model(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    small = {"hidden": 6, "embedding_size": 4, "node_dropout": 0.0, "dropout": 0.0}
    domain = Domain(N_USERS, N_ITEMS, 2.3, LEVELS, False, raters())
    return model_entry("gcmc-softmax").model_class(
        configure("gcmc-softmax", {**small, **options}), domain
    )


def by_hand(net, user: int, item: int, hide: bool) -> torch.Tensor:
    """Logits of one pair, one edge at a time."""
    edges = {k: r for k, r in RATINGS.items() if not (hide and k == (user, item))}
    whole_user, whole_item = ([k[side] for k in RATINGS] for side in (0, 1))

    def node(messages, mine: int, other: int, who: int, theirs: list[int]) -> torch.Tensor:
        near = [(k[other], r) for k, r in edges.items() if k[mine] == who]
        total = torch.zeros(messages.size)
        for neighbour, rating in near:
            level = LEVELS.index(rating)
            if messages.stack:
                width = messages.size // len(LEVELS)
                place = slice(level * width, (level + 1) * width)
                said = torch.zeros(messages.size)
                said[place] = messages.weight[level, neighbour]
            else:
                said = messages.weight[: level + 1, neighbour].sum(0)
            degree = len(near)
            if net.config.symmetric:
                total = total + said / (degree * theirs.count(neighbour)) ** 0.5
            else:
                total = total + said / degree
        return net.dense.weight @ total.relu()

    u = node(net.from_items, 0, 1, user, whole_item)
    v = node(net.from_users, 1, 0, item, whole_user)
    levels = []
    for r in range(len(LEVELS)):
        q = sum(a * p for a, p in zip(net.head.mix[r], net.head.bases, strict=True))
        levels.append(u @ q @ v)
    return torch.stack(levels)


@pytest.mark.parametrize("accumulate", ["stack", "sum"])
@pytest.mark.parametrize("symmetric", [False, True])
@torch.no_grad()
def test_equals_plain_loops(accumulate: str, symmetric: bool) -> None:
    net = model(accumulate=accumulate, symmetric=symmetric)
    users = people(*((u, history(u)) for u in range(N_USERS)))
    items = torch.arange(N_ITEMS).expand(N_USERS, -1)
    got = net.eval().logits(users, items, torch.arange(N_USERS))
    for user in range(N_USERS):
        for item in range(N_ITEMS):
            assert torch.allclose(got[user, item], by_hand(net, user, item, False), atol=1e-6)
    expected = got.softmax(-1) @ torch.tensor(LEVELS)
    assert torch.allclose(net.rank(users), expected, atol=1e-6)


@pytest.mark.parametrize("accumulate", ["stack", "sum"])
@torch.no_grad()
def test_in_training_a_pair_is_scored_as_if_it_were_not_in_the_graph(accumulate: str) -> None:
    """Episodes keep the target out of the history; the model takes it out of the item's raters."""
    net = model(accumulate=accumulate).train()
    for user, item in RATINGS:
        users = people((user, history(user, without=item)))
        one = torch.tensor([[item]])
        got = net.logits(users, one, torch.zeros(1, dtype=torch.int64))[0, 0]
        assert torch.allclose(got, by_hand(net, user, item, True), atol=1e-6)
    shown = model(accumulate=accumulate, hide_target=False).train()
    got = shown.logits(people((0, history(0))), torch.tensor([[1]]), torch.tensor([0]))[0, 0]
    assert torch.allclose(got, by_hand(shown, 0, 1, False), atol=1e-6)


def test_ordinal_weights_share_what_near_levels_say() -> None:
    """A rating at the highest level teaches all the T_s below it; one at the lowest only T_1."""
    net = model(accumulate="sum").train()
    for part in (net.from_items, net.from_users):
        part.weight.data.abs_()  # nothing is cut off by the ReLU
    for rating, expected in ((4.0, [True, True, True]), (1.0, [True, False, False])):
        net.zero_grad()
        users, items = people((0, [(1, rating)])), torch.tensor([[0]])
        batch = Batch(users, torch.tensor([0]), items, torch.tensor([[2.0]]))
        sum(accuracy()(net, batch).values()).backward()
        taught = net.from_items.weight.grad[:, 1].abs().sum(-1) > 0
        assert taught.tolist() == expected


def test_a_dropped_node_is_silent_to_everybody() -> None:
    """Node dropout takes all messages of a node or none, and makes the others louder."""
    net = model(node_dropout=0.5).train()
    torch.manual_seed(3)
    voice = net._voice(net.user_count)
    assert set(voice.tolist()) <= {0.0, 2.0}
    assert net.eval()._voice(net.user_count) is None
