"""F-EAE against plain loops over a tiny matrix, and the cells that must stay hidden."""

import pytest
import torch

from idcf.models.registry import configure, model_entry
from idcf.paper.layers.exchangeable import MatrixAxis
from idcf.training.objectives import prediction_objective
from idcf.types import Batch, Domain, History, Users

LEVELS = (1.0, 2.0, 4.0)
N_USERS, N_ITEMS = 5, 4  # user 4 and item 3 are in no entry
RATINGS = {
    **{(0, 0): 1.0, (0, 1): 4.0, (1, 1): 2.0, (1, 2): 4.0, (2, 0): 2.0, (2, 1): 1.0},
    **{(3, 0): 4.0, (3, 1): 4.0, (3, 2): 1.0},
}
NEW_USER = 99
Matrix = dict[tuple[int, int], float]
Profile = list[tuple[int, float]]  # (item, rating) pairs of one user


def leaky_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 0.01 * x)


def make_history(rows: list[Profile]) -> History:
    flat = [pair for row in rows for pair in row]
    offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
    items = torch.tensor([i for i, _ in flat], dtype=torch.int64)
    return History(items, torch.tensor([r for _, r in flat]), offsets)


def make_domain(ratings: Matrix = RATINGS) -> Domain:
    by_item = [[(u, r) for (u, i), r in ratings.items() if i == j] for j in range(N_ITEMS)]
    return Domain(N_USERS, N_ITEMS, 2.3, LEVELS, False, make_history(by_item).as_ragged())


def make_users(*profiles: tuple[int, Profile]) -> Users:
    return Users(torch.tensor([u for u, _ in profiles]), make_history([p for _, p in profiles]))


def profile_of(user: int, without: tuple[int, ...] = ()) -> Profile:
    return [(i, r) for (u, i), r in RATINGS.items() if u == user and i not in without]


def make_model(ratings: Matrix = RATINGS, **options: object):
    torch.manual_seed(0)
    small = {"channels": 5, "code": 3, "dropout": 0.0, **options}
    return model_entry("f-eae").build(configure("f-eae", small), make_domain(ratings))


def slow_means(model, entries: dict, side: int, overall_mean: torch.Tensor) -> dict:
    """Shrunken mean of each row (side 0) or column (side 1)."""
    k = max(model.config.shrinkage, 1e-6)
    means = {}
    for group in range(N_ITEMS) if side else {u for u, _ in entries}:
        values = [v for key, v in entries.items() if key[side] == group]
        means[group] = (sum(values) + k * overall_mean) / (len(values) + k)
    return means


def slow_std(entries: dict, side: int, means: dict, overall_mean: torch.Tensor) -> torch.Tensor:
    """Standard deviation of the means of rows (side 0) or columns (side 1), over entries."""
    total = sum((means[key[side]] - overall_mean) ** 2 for key in entries)
    return (total / len(entries) + 1e-6).sqrt()


def slow_layer(model, layer, entries: dict, statistics=None) -> tuple[dict, dict, tuple]:
    """The terms of single entries and of rows, and (column terms, overall mean, std of rows)."""
    overall_mean = sum(entries.values()) / len(entries) if statistics is None else statistics[1]
    row_means = slow_means(model, entries, 0, overall_mean)
    if statistics is None:
        column_means = slow_means(model, entries, 1, overall_mean)
        row_std = torch.ones_like(overall_mean)
        if model.config.standardize:
            row_std = slow_std(entries, 0, row_means, overall_mean)
            column_std = slow_std(entries, 1, column_means, overall_mean)
            column_means = {j: (m - overall_mean) / column_std for j, m in column_means.items()}
        constant = layer.overall_linear(overall_mean)
        column_terms = {j: layer.column_linear(m) + constant for j, m in column_means.items()}
        statistics = column_terms, overall_mean, row_std
    if model.config.standardize:
        row_means = {u: (m - overall_mean) / statistics[2] for u, m in row_means.items()}
    row_terms = {u: layer.row_linear(m) for u, m in row_means.items()}
    return {key: layer.entry_linear(v) for key, v in entries.items()}, row_terms, statistics


def slow_encode(model, matrix: Matrix, given: list | None = None) -> tuple[dict, dict, list]:
    """Codes of rows and columns, and statistics by layer. With `given` statistics, none are
    computed from the matrix."""
    entries = {k: torch.eye(len(LEVELS))[LEVELS.index(r)] for k, r in matrix.items()}
    by_layer = []
    for n, layer in enumerate(model.encoder):
        entry_terms, row_terms, statistics = slow_layer(
            model, layer, entries, given[n][0] if given else None
        )
        column_terms = statistics[0]
        entries = {
            (u, j): leaky_relu(v + row_terms[u] + column_terms[j])
            for (u, j), v in entry_terms.items()
        }
        to_rows = {(u, j): v + column_terms[j] for (u, j), v in entry_terms.items()}
        by_layer.append((statistics, sum(to_rows.values()) / len(entries)))
    # codes are means over the last layer; the term of a row is equal in all its entries
    row_codes = slow_means(model, to_rows, 0, given[-1][1] if given else by_layer[-1][1])
    row_codes = {u: m + row_terms[u] for u, m in row_codes.items()}
    to_columns = {(u, j): v + row_terms[u] for (u, j), v in entry_terms.items()}
    overall_mean = sum(to_columns.values()) / len(entries)
    column_codes = slow_means(model, to_columns, 1, overall_mean)
    return row_codes, {j: m + column_terms[j] for j, m in column_codes.items()}, by_layer


def slow_logits(model, matrix: Matrix, profile: Profile, item: int) -> torch.Tensor:
    """Logits of one pair: encode the matrix, then the profile as one more row."""
    _, column_codes, statistics = slow_encode(model, matrix)
    row_codes, _, _ = slow_encode(model, {(NEW_USER, i): r for i, r in profile}, statistics)
    codes = [row_codes[NEW_USER], column_codes[item]]
    if model.config.counts:
        counts = (len(profile), sum(i == item for _, i in matrix))
        codes = [
            torch.cat([code, torch.tensor([n]).log1p() * 0.2])
            for code, n in zip(codes, counts, strict=True)
        ]
    x = torch.cat(codes)
    for n, layer in enumerate(model.decoder):
        x = layer(leaky_relu(x) if n else x)
    return x


@pytest.mark.parametrize("extended", [False, True])
@torch.no_grad()
def test_equals_plain_loops(extended: bool) -> None:
    """As in the paper, and with the options that were added to it."""
    as_in_paper = {"counts": False, "standardize": False, "shrinkage": 0.0}
    model = make_model(**({} if extended else as_in_paper)).eval()
    profiles = [[(0, 4.0)], [(2, 1.0), (1, 2.0), (0, 2.0)]]
    users = make_users(*((-1, profile) for profile in profiles))
    items = torch.tensor([[0, 1, 2], [2, 1, 0]])
    logits = model.level_logits(users, items, torch.arange(2))
    for m, profile in enumerate(profiles):
        for k, item in enumerate(items[m].tolist()):
            expected = slow_logits(model, RATINGS, profile, item)
            assert torch.allclose(logits[m, k], expected, atol=1e-5)


@torch.no_grad()
def test_training_hides_its_targets_from_the_matrix() -> None:
    model = make_model().train()
    targets = {(0, 1), (3, 2), (3, 0)}
    users = make_users((0, profile_of(0)), (3, profile_of(3)))
    items, owner = torch.tensor([[1], [2], [0]]), torch.tensor([0, 1, 1])
    logits = model.level_logits(users, items, owner)
    visible = {k: r for k, r in RATINGS.items() if k not in targets}
    for m, (user, without) in enumerate(((0, (1,)), (3, (0, 2)), (3, (0, 2)))):
        expected = slow_logits(model, visible, profile_of(user, without), int(items[m, 0]))
        assert torch.allclose(logits[m, 0], expected, atol=1e-5)


@pytest.mark.parametrize("exchangeable", [False, True])
@torch.no_grad()
def test_a_changed_target_changes_nothing_in_training(exchangeable: bool) -> None:
    """Equal weights over matrices in which the target has different values."""
    logits = []
    for value in LEVELS:
        ratings = {**RATINGS, (3, 1): value}
        model = make_model(ratings, exchangeable_decoder=exchangeable).train()
        users = make_users((3, [(i, ratings[3, i]) for i in (0, 1, 2)]))
        logits.append(model.level_logits(users, torch.tensor([[1]]), torch.tensor([0])))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])


@torch.no_grad()
def test_scores_of_the_exchangeable_decoder_do_not_depend_on_other_scored_pairs() -> None:
    """Its means run over histories and the matrix, not over the pairs that are scored."""
    model = make_model(exchangeable_decoder=True).eval()
    users = make_users((-1, profile_of(0)), (-1, profile_of(1)))
    single = model(users, torch.tensor([[2]]), torch.tensor([0]))
    many = model(users, torch.tensor([[2, 1, 0, 3], [0, 1, 2, 3]]), torch.tensor([0, 1]))
    assert torch.allclose(single[0, 0], many[0, 0], atol=1e-6)
    assert torch.allclose(model.score_catalog(users)[1], many[1], atol=1e-6)
    assert not torch.allclose(many[0], many[1])


@torch.no_grad()
def test_scores_do_not_depend_on_how_users_and_items_are_numbered() -> None:
    new_user_ids, new_item_ids = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 3, 1, 0])
    renumbered = {(int(new_user_ids[u]), int(new_item_ids[i])): r for (u, i), r in RATINGS.items()}
    model = make_model(exchangeable_decoder=True).eval()
    renumbered_model = make_model(renumbered, exchangeable_decoder=True).eval()
    profile = profile_of(1)
    renumbered_profile = [(int(new_item_ids[i]), r) for i, r in profile]
    scores = model.score_catalog(make_users((-1, profile)))
    renumbered_scores = renumbered_model.score_catalog(make_users((-1, renumbered_profile)))
    assert torch.allclose(scores[0], renumbered_scores[0, new_item_ids], atol=1e-6)


@torch.no_grad()
def test_an_empty_history_is_the_mean_entry() -> None:
    model = make_model(counts=False, standardize=False, shrinkage=0.0).eval()
    row_codes, _, _ = slow_encode(model, RATINGS)
    mean = sum(row_codes[u] for u, _ in RATINGS) / len(RATINGS)
    empty = model._row_codes(make_users((-1, [])).history, model._column_codes())
    assert torch.allclose(empty.code[0], mean, atol=1e-5)


@torch.no_grad()
def test_a_frozen_model_encodes_the_matrix_once() -> None:
    model = make_model().eval()
    users = make_users((-1, []))
    scores = model.score_catalog(users)
    assert model._column_codes() is not model._column_codes()
    model.freeze()
    assert model._column_codes() is model._column_codes()
    assert torch.equal(model.score_catalog(users), scores)


def test_gradients_are_right() -> None:
    """Of the sum whose gradient is written by hand, and of the whole model through one weight."""
    axis = MatrixAxis(
        torch.tensor([1, 0, 1, 1]),
        torch.tensor([1, 0, 2, 3]),
        torch.tensor([0, 1, 4]),
        torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64),
    )
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    overall_mean = torch.ones(2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: axis.mean(x, overall_mean), x)
    model = make_model().double().train()
    model.levels = model.levels.double()
    users = make_users((0, profile_of(0)))
    users = Users(users.ids, users.history._replace(values=users.history.values.double()))
    batch = Batch(users, torch.tensor([0]), torch.tensor([[2]]), torch.tensor([[4.0]]).double())
    loss = prediction_objective()(model, batch)["levels"]
    loss.backward()
    weight = model.encoder[0].column_linear.weight
    weight.data[1, 1] += 1e-6
    new_loss = prediction_objective()(model, batch)["levels"]
    assert ((new_loss - loss) / 1e-6).item() == pytest.approx(float(weight.grad[1, 1]), rel=1e-3)
