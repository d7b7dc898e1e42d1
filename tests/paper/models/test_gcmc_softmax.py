"""The original GC-MC against plain loops, and the edges that must stay hidden."""

import pytest
import torch

from idcf.models.registry import configure, model_entry
from idcf.training.objectives import prediction_objective
from idcf.types import Batch, Domain, History, Ragged, Users

LEVELS = (1.0, 2.0, 4.0)
RATINGS = {(0, 0): 1.0, (0, 1): 4.0, (1, 1): 2.0, (1, 3): 4.0, (2, 0): 2.0, (2, 1): 1.0}
N_USERS, N_ITEMS = 4, 5  # user 3 and items 2, 4 have no edge
Profile = list[tuple[int, float]]  # (item, rating) pairs of one user


def make_raters() -> Ragged[torch.Tensor]:
    users = [sorted(u for u, i in RATINGS if i == item) for item in range(N_ITEMS)]
    values = [RATINGS[u, i] for i in range(N_ITEMS) for u in users[i]]
    offsets = torch.tensor([0, *map(len, users)]).cumsum(0)
    flat_users = torch.tensor([u for item_users in users for u in item_users])
    return Ragged(flat_users, torch.tensor(values), offsets)


def profile_of(user: int, without: int = -1) -> Profile:
    return [(i, r) for (u, i), r in RATINGS.items() if u == user and i != without]


def make_users(*profiles: tuple[int, Profile]) -> Users:
    items = [i for _, profile in profiles for i, _ in profile]
    values = [r for _, profile in profiles for _, r in profile]
    offsets = torch.tensor([0, *(len(profile) for _, profile in profiles)]).cumsum(0)
    ids = torch.tensor([u for u, _ in profiles])
    return Users(ids, History(torch.tensor(items), torch.tensor(values), offsets))


def make_model(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    small = {"hidden": 6, "embedding_size": 4, "node_dropout": 0.0, "dropout": 0.0}
    domain = Domain(N_USERS, N_ITEMS, 2.3, LEVELS, False, make_raters())
    return model_entry("gcmc-softmax").build(
        configure("gcmc-softmax", {**small, **options}), domain
    )


def slow_logits(model, user: int, item: int, hide: bool) -> torch.Tensor:
    """Logits of one pair, one edge at a time; with `hide`, without the edge of the pair."""
    edges = {k: r for k, r in RATINGS.items() if not (hide and k == (user, item))}
    edge_users, edge_items = ([k[side] for k in RATINGS] for side in (0, 1))

    def embed_node(layer, side: int, node: int, other_side_nodes: list[int]) -> torch.Tensor:
        neighbors = [(k[1 - side], r) for k, r in edges.items() if k[side] == node]
        total = torch.zeros(layer.size)
        for neighbor, rating in neighbors:
            level = LEVELS.index(rating)
            if layer.stack:
                width = layer.size // len(LEVELS)
                message = torch.zeros(layer.size)
                message[level * width : (level + 1) * width] = layer.weight[level, neighbor]
            else:
                message = layer.weight[: level + 1, neighbor].sum(0)
            degree = len(neighbors)
            if model.config.symmetric:
                degree = (degree * other_side_nodes.count(neighbor)) ** 0.5
            total = total + message / degree
        return model.dense.weight @ total.relu()

    u = embed_node(model.from_items, 0, user, edge_items)
    v = embed_node(model.from_users, 1, item, edge_users)
    logits = []
    for r in range(len(LEVELS)):
        q = sum(a * p for a, p in zip(model.head.mix[r], model.head.bases, strict=True))
        logits.append(u @ q @ v)
    return torch.stack(logits)


@pytest.mark.parametrize("accumulate", ["stack", "sum"])
@pytest.mark.parametrize("symmetric", [False, True])
@torch.no_grad()
def test_equals_plain_loops(accumulate: str, symmetric: bool) -> None:
    model = make_model(accumulate=accumulate, symmetric=symmetric).eval()
    users = make_users(*((u, profile_of(u)) for u in range(N_USERS)))
    items = torch.arange(N_ITEMS).expand(N_USERS, -1)
    logits = model.level_logits(users, items, torch.arange(N_USERS))
    for user in range(N_USERS):
        for item in range(N_ITEMS):
            expected = slow_logits(model, user, item, hide=False)
            assert torch.allclose(logits[user, item], expected, atol=1e-6)
    scores = logits.softmax(-1) @ torch.tensor(LEVELS)
    assert torch.allclose(model.score_catalog(users), scores, atol=1e-6)


@pytest.mark.parametrize("accumulate", ["stack", "sum"])
@torch.no_grad()
def test_in_training_a_pair_is_scored_as_if_it_were_not_in_the_graph(accumulate: str) -> None:
    """Episodes keep the target out of the history; the model removes it from the item's raters."""
    model = make_model(accumulate=accumulate).train()
    for user, item in RATINGS:
        users = make_users((user, profile_of(user, without=item)))
        owner = torch.zeros(1, dtype=torch.int64)
        logits = model.level_logits(users, torch.tensor([[item]]), owner)[0, 0]
        assert torch.allclose(logits, slow_logits(model, user, item, hide=True), atol=1e-6)
    unmasked = make_model(accumulate=accumulate, hide_target=False).train()
    users = make_users((0, profile_of(0)))
    logits = unmasked.level_logits(users, torch.tensor([[1]]), torch.tensor([0]))[0, 0]
    assert torch.allclose(logits, slow_logits(unmasked, 0, 1, hide=False), atol=1e-6)


def test_ordinal_weights_are_shared_by_adjacent_levels() -> None:
    """A rating at the highest level trains every T_s; one at the lowest only T_1."""
    model = make_model(accumulate="sum").train()
    for layer in (model.from_items, model.from_users):
        layer.weight.data.abs_()  # so that the ReLU cuts nothing off
    for rating, expected in ((4.0, [True, True, True]), (1.0, [True, False, False])):
        model.zero_grad()
        users, items = make_users((0, [(1, rating)])), torch.tensor([[0]])
        batch = Batch(users, torch.tensor([0]), items, torch.tensor([[2.0]]))
        sum(prediction_objective()(model, batch).values()).backward()
        has_gradient = model.from_items.weight.grad[:, 1].abs().sum(-1) > 0
        assert has_gradient.tolist() == expected


def test_node_dropout_drops_all_messages_of_a_node_or_none() -> None:
    """The messages of the other nodes are scaled up."""
    model = make_model(node_dropout=0.5).train()
    torch.manual_seed(3)
    scale = model._message_scale(model.user_count)
    assert set(scale.tolist()) <= {0.0, 2.0}
    assert model.eval()._message_scale(model.user_count) is None


@torch.no_grad()
def test_a_pair_is_hidden_under_node_dropout() -> None:
    """The message of the user leaves the sum with the scale that dropout gave the user."""
    items, users = torch.tensor([[i] for _, i in RATINGS]), torch.tensor([u for u, _ in RATINGS])
    model = make_model(node_dropout=0.5).train()
    torch.manual_seed(3)
    scale = model._message_scale(model.user_count)
    assert set(scale.tolist()) == {0.0, 2.0}
    torch.manual_seed(3)
    got = model._embed_items(items, users)[:, 0]
    for n, (user, item) in enumerate(RATINGS):
        raters = [(u, r) for (u, i), r in RATINGS.items() if i == item and u != user]
        total = torch.zeros(len(LEVELS), 2)
        for u, r in raters:
            level = LEVELS.index(r)
            total[level] += scale[u] * model.from_users.weight[level, u] / len(raters)
        torch.testing.assert_close(got[n], model.dense.weight @ total.flatten().relu())
