"""F-EAE against plain loops over a tiny matrix, and what must not leak."""

import pytest
import torch

from idcf.models.registry import configure, model_entry
from idcf.paper.layers.exchangeable import Axis
from idcf.training.objectives import accuracy
from idcf.types import Batch, Domain, History, Users

torch.set_num_threads(1)

LEVELS = (1.0, 2.0, 4.0)
N_USERS, N_ITEMS = 5, 4  # user 4 and item 3 are in no entry
RATINGS = {
    **{(0, 0): 1.0, (0, 1): 4.0, (1, 1): 2.0, (1, 2): 4.0, (2, 0): 2.0, (2, 1): 1.0},
    **{(3, 0): 4.0, (3, 1): 4.0, (3, 2): 1.0},
}
Matrix = dict[tuple[int, int], float]


def act(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def csr(rows: list[list[tuple[int, float]]]) -> History:
    flat = [x for row in rows for x in row]
    starts = torch.tensor([0, *map(len, rows)]).cumsum(0)
    items = torch.tensor([i for i, _ in flat], dtype=torch.int64)
    return History(items, torch.tensor([r for _, r in flat]), starts)


def domain(ratings: Matrix = RATINGS) -> Domain:
    by_item = [[(u, r) for (u, i), r in ratings.items() if i == j] for j in range(N_ITEMS)]
    return Domain(N_USERS, N_ITEMS, 2.3, LEVELS, False, csr(by_item))


def people(*seen: tuple[int, list[tuple[int, float]]]) -> Users:
    return Users(torch.tensor([u for u, _ in seen]), csr([had for _, had in seen]))


def history(user: int, without: tuple[int, ...] = ()) -> list[tuple[int, float]]:
    return [(i, r) for (u, i), r in RATINGS.items() if u == user and i not in without]


def model(ratings: Matrix = RATINGS, **options: object):
    torch.manual_seed(0)
    small = {"channels": 5, "code": 3, "dropout": 0.0, **options}
    return model_entry("f-eae").model_class(configure("f-eae", small), domain(ratings))


def means(net, x: dict, side: int, every: torch.Tensor) -> dict:
    """Of each row (0) or column (1), shrunk; and how far they lie from `every`."""
    k = max(net.config.strength, 1e-6)
    out = {}
    for which in range(N_ITEMS) if side else {u for u, _ in x}:
        near = [v for key, v in x.items() if key[side] == which]
        out[which] = (sum(near) + k * every) / (len(near) + k)
    return out


def spread(x: dict, side: int, mean: dict, every: torch.Tensor) -> torch.Tensor:
    return (sum((mean[key[side]] - every) ** 2 for key in x) / len(x) + 1e-6).sqrt()


def layer(net, part, x: dict, heard=None) -> tuple[dict, dict, tuple]:
    """What entries and rows say, one by one; and what a row needs to know of the others."""
    every = sum(x.values()) / len(x) if heard is None else heard[1]
    rows = means(net, x, 0, every)
    if heard is None:
        columns, far = means(net, x, 1, every), torch.ones_like(every)
        if net.config.standard:
            far = spread(x, 0, rows, every)
            width = spread(x, 1, columns, every)
            columns = {j: (m - every) / width for j, m in columns.items()}
        heard = {j: part.column(m) + part.every(every) for j, m in columns.items()}, every, far
    far = heard[2]
    rows = {u: part.row((m - every) / far if net.config.standard else m) for u, m in rows.items()}
    return {key: part.own(v) for key, v in x.items()}, rows, heard


def encode(net, matrix: Matrix, said: list | None = None) -> tuple[dict, dict, list]:
    """Codes of rows and columns. With `said`, columns are heard and not read."""
    x = {k: torch.eye(len(LEVELS))[LEVELS.index(r)] for k, r in matrix.items()}
    heard = []
    for n, part in enumerate(net.encoder):
        own, rows, each = layer(net, part, x, said[n][0] if said else None)
        columns = each[0]
        x = {(u, j): act(v + rows[u] + columns[j]) for (u, j), v in own.items()}
        to_rows = {(u, j): v + columns[j] for (u, j), v in own.items()}
        heard.append((each, sum(to_rows.values()) / len(x)))
    # the means of the last layer, in which what a row says to all its entries is itself
    row_codes = means(net, to_rows, 0, said[-1][1] if said else heard[-1][1])
    row_codes = {u: m + rows[u] for u, m in row_codes.items()}
    to_columns = {(u, j): v + rows[u] for (u, j), v in own.items()}
    column_codes = means(net, to_columns, 1, sum(to_columns.values()) / len(x))
    return row_codes, {j: m + columns[j] for j, m in column_codes.items()}, heard


def by_hand(net, matrix: Matrix, had: list[tuple[int, float]], item: int) -> torch.Tensor:
    """Logits of one pair: the matrix first, then a row that hears it."""
    _, columns, said = encode(net, matrix)
    row, _, _ = encode(net, {(99, i): r for i, r in had}, said)
    parts = [row[99], columns[item]]
    if net.config.counts:
        counts = (len(had), sum(i == item for _, i in matrix))
        parts = [
            torch.cat([x, torch.tensor([n]).log1p() * 0.2])
            for x, n in zip(parts, counts, strict=True)
        ]
    x = torch.cat(parts)
    for n, part in enumerate(net.decoder):
        x = part(act(x) if n else x)
    return x


@pytest.mark.parametrize("ours", [False, True])
@torch.no_grad()
def test_equals_plain_loops(ours: bool) -> None:
    """As in the paper, and with what was added to it."""
    added = {} if ours else {"counts": False, "standard": False, "strength": 0.0}
    net = model(**added).eval()
    strangers = [[(0, 4.0)], [(2, 1.0), (1, 2.0), (0, 2.0)]]
    users = people(*((-1, had) for had in strangers))
    items = torch.tensor([[0, 1, 2], [2, 1, 0]])
    got = net.logits(users, items, torch.arange(2))
    for m, had in enumerate(strangers):
        for k, item in enumerate(items[m].tolist()):
            assert torch.allclose(got[m, k], by_hand(net, RATINGS, had, item), atol=1e-5)


@pytest.mark.parametrize("episodic", [False, True])
@torch.no_grad()
def test_in_training_what_is_asked_is_read_nowhere(episodic: bool) -> None:
    """Whole histories are given; what is asked is taken out of them and out of the matrix. So it
    is all the same whether rows are read from one or from the other."""
    net = model(episodic=episodic).train()
    asked = {(0, 1), (3, 2), (3, 0)}
    users = people((0, history(0)), (3, history(3)))
    items, owner = torch.tensor([[1], [2], [0]]), torch.tensor([0, 1, 1])
    got = net.logits(users, items, owner)
    rest = {k: r for k, r in RATINGS.items() if k not in asked}
    for m, (user, without) in enumerate(((0, (1,)), (3, (0, 2)), (3, (0, 2)))):
        expected = by_hand(net, rest, history(user, without), int(items[m, 0]))
        assert torch.allclose(got[m, 0], expected, atol=1e-5)


@pytest.mark.parametrize("exchangeable", [False, True])
@pytest.mark.parametrize("episodic", [False, True])
@torch.no_grad()
def test_a_changed_target_changes_nothing_in_training(exchangeable: bool, episodic: bool) -> None:
    """The same weights over a matrix in which the target has another value."""
    answers = []
    for value in LEVELS:
        ratings = {**RATINGS, (3, 1): value}
        options = {"exchangeable_decoder": exchangeable, "episodic": episodic}
        net = model(ratings, **options).train()
        had = [(i, ratings[3, i]) for i in (0, 1, 2)]
        answers.append(net.logits(people((3, had)), torch.tensor([[1]]), torch.tensor([0])))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


@torch.no_grad()
def test_the_exchangeable_decoder_hears_but_never_the_asked() -> None:
    """Its means run over histories and the matrix: asking more changes no answer."""
    net = model(exchangeable_decoder=True).eval()
    users = people((-1, history(0)), (-1, history(1)))
    one = net(users, torch.tensor([[2]]), torch.tensor([0]))
    many = net(users, torch.tensor([[2, 1, 0, 3], [0, 1, 2, 3]]), torch.tensor([0, 1]))
    assert torch.allclose(one[0, 0], many[0, 0], atol=1e-6)
    assert torch.allclose(net.rank(users)[1], many[1], atol=1e-6)
    assert not torch.allclose(many[0], many[1])


@torch.no_grad()
def test_people_and_items_have_no_number() -> None:
    """Users and items numbered otherwise, the same answers: the model is exchangeable."""
    who, what = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 3, 1, 0])
    turned = {(int(who[u]), int(what[i])): r for (u, i), r in RATINGS.items()}
    one, two = model(exchangeable_decoder=True).eval(), model(turned, exchangeable_decoder=True)
    had = history(1)
    moved = [(int(what[i]), r) for i, r in had]
    a, b = one.rank(people((-1, had))), two.eval().rank(people((-1, moved)))
    assert torch.allclose(a[0], b[0, what], atol=1e-6)


@torch.no_grad()
def test_nobody_is_the_mean_entry_and_frozen_columns_are_kept() -> None:
    net = model(counts=False, standard=False, strength=0.0).eval()
    rows, _, _ = encode(net, RATINGS)
    mean = sum(rows[u] for u, _ in RATINGS) / len(RATINGS)
    nobody = net._rows(people((-1, [])).history, net._columns())
    assert torch.allclose(nobody.code[0], mean, atol=1e-5)
    before = net.rank(people((-1, [])))
    net.freeze()
    kept = net._columns()
    assert net._columns() is kept
    assert torch.equal(net.rank(people((-1, []))), before)


def test_gradients_are_right() -> None:
    """Of the sum whose gradient is written by hand, and of the whole through one weight."""
    axis = Axis.build(
        torch.tensor([1, 0, 1, 1]),
        torch.tensor([1, 0, 2, 3]),
        torch.tensor([0, 1, 4]),
        torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64),
    )
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    every = torch.ones(2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: axis.mean(x, every), x)
    net = model().double().train()
    net.levels = net.levels.double()
    users = people((0, history(0)))
    users = Users(users.ids, users.history._replace(values=users.history.values.double()))
    batch = Batch(users, torch.tensor([0]), torch.tensor([[2]]), torch.tensor([[4.0]]).double())
    loss = accuracy()(net, batch)["levels"]
    loss.backward()
    weight = net.encoder[0].column.weight
    weight.data[1, 1] += 1e-6
    moved = accuracy()(net, batch)["levels"]
    assert ((moved - loss) / 1e-6).item() == pytest.approx(float(weight.grad[1, 1]), rel=1e-3)
