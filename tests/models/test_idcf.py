"""IDCF beyond the shared checks: its options, sampling in training, and frozen parameters."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from idcf.data import batches
from idcf.data.split import rank_in_user, sample_rows_per_user
from idcf.errors import ConfigError
from idcf.models.gcmc import GCMC
from idcf.models.idcf import IDCF
from idcf.models.registry import configure, model_entry
from idcf.testing import synthetic_world, trained_in_world
from idcf.testing.worlds import epoch_batches, users_with_rows
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import adaption_objective, prediction_objective
from idcf.training.options import TrainConfig
from idcf.types import History, Users

NAMES = ("idcf-dot", "idcf-nn", "idcf-gc")
BACKBONE = {"idcf-dot": "pmf", "idcf-nn": "nnmf", "idcf-gc": "gcmc"}
SPLIT = synthetic_world().split
TABLE = SPLIT.train.for_users(SPLIT.key_users)


def build(name, **options):
    torch.manual_seed(0)
    return IDCF(
        configure(name, options), trained_in_world(BACKBONE[name]).model, users_with_rows(TABLE)
    )


def model_config(name):
    return configure(name, model_entry(name).check_options)


def new_users(n=5):
    ids = SPLIT.query_users[:n]
    return Users(torch.from_numpy(ids), SPLIT.train.history(ids)).anonymous()


def training_batch(model, size=10_000):
    return next(iter(epoch_batches(model, TABLE, size)))


def induced(model, history):
    return model.induce_latents(history, model.encode_history(history))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "literal"},
        {"attention": "additive"},
        {"query": "ratings"},
        {"bias": "own"},
        {"pooling": "sum"},
        {"standardize": False, "scaled": False, "pooling": "mean"},
        {"query_length": False, "relate_bias": False},
        {"query_length": False, "relate_bias": False, "query": "ratings"},
        {"key_sample": "user", "n_attended_users": 5},
        {"key_sample": "user", "attention": "literal"},
        {"relation_start": "glorot", "values_of_keys": True},
        {"heads": 1, "n_attended_users": 5},
    ],
    ids=str,
)
def test_every_option_trains_and_scores(name, options):
    model = build(name, **options).train()
    sum(adaption_objective(0.1)(model, training_batch(model)).values()).backward()
    idle = [k for k, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle
    with torch.no_grad():
        scores = model.eval().score_catalog(new_users())
    assert scores.shape == (5, model.n_items)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", NAMES)
def test_meta_latents_and_items_stay_frozen(name):
    """Steps of an optimizer that would move every parameter it is given."""
    model = build(name).train()
    before = deepcopy(model.state_dict())
    for _ in range(2):  # with standardized queries, the first step may leave a weight unchanged
        model.zero_grad()
        sum(adaption_objective(0.1)(model, training_batch(model)).values()).backward()
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    fixed = {"key_latents", "mean_key_latent", "query_mean", "query_std", "key_scale"}
    assert fixed <= before.keys()
    tables = {k for k in before if k.startswith(("backbone.user_table.", "backbone.item_table."))}
    assert len(tables) == 4
    assert not moved & (fixed | tables)
    assert "relation.query" in moved
    trained = {k for k, p in model.named_parameters() if p.requires_grad}
    assert moved == trained


def test_training_attends_to_a_sample_and_inference_to_all():
    model, history = build("idcf-dot", n_attended_users=3), new_users().history
    with torch.no_grad():
        model.train()
        sampled = [induced(model, history) for _ in range(2)]
        model.eval()
        fixed = [induced(model, history) for _ in range(2)]
    assert not torch.allclose(*sampled)
    assert torch.equal(*fixed)


def test_a_sample_is_drawn_for_each_head():
    model = build("idcf-dot", n_attended_users=3, heads=2).train()
    torch.manual_seed(0)
    keys = model._sample_key_latents()
    assert keys.shape[:2] == (2, 3)
    assert not torch.equal(keys[0], keys[1])


def test_an_induced_latent_starts_as_a_weighted_mean_of_the_key_users():
    """p̃ = Σ c p: attention rows sum to one, values and output begin as the identity."""
    model, users = build("idcf-nn").eval(), new_users()
    with torch.no_grad():
        weights = model.attention_weights(users).mean(0)
        torch.testing.assert_close(induced(model, users.history), weights @ model.key_latents)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(users)))


@pytest.mark.parametrize("name", NAMES)
def test_a_new_user_s_bias_is_inferred_from_the_history(name):
    """A user who rates everything one star lower is predicted lower."""
    users = new_users()
    values = users.history.values - 1
    harsh = Users(users.ids, users.history._replace(values=values))
    with torch.no_grad():
        inferred, per_user = build(name).eval(), build(name, bias="own").eval()
        assert (inferred.embed_users(harsh).bias < inferred.embed_users(users).bias).all()
        assert not per_user.embed_users(harsh).bias.any()


@pytest.mark.parametrize("name", NAMES)
def test_a_trained_bias_moves_with_the_user_s_ratings_alone(name):
    """As published: key users start with their bias of the backbone, new users have 0."""
    model = build(name, bias="own")
    assert model.inductive
    assert not model.ignores_user_ids
    bias = model.backbone.user_table.bias
    known_users = Users(torch.tensor([4, 0, 7, 1, 2]), new_users().history)
    with torch.no_grad():
        bias.copy_(torch.arange(len(bias)) / 10.0)
        assert torch.equal(model.embed_users(known_users).bias, bias[known_users.ids])
        assert not model.embed_users(known_users.anonymous()).bias.any()
    two_users = TABLE.for_users(np.array([1, 4]))
    start = bias.detach().clone()
    config = TrainConfig(learning_rate=0.01, epochs=1)
    rows = batches.row_batches(two_users, two_users, batch_size=64, rng=np.random.default_rng(0))
    fit_by_gradient(model, lambda _: rows, adaption_objective(0.0), config)
    moved = torch.nonzero(bias.detach() != start)[:, 0]
    assert moved.tolist() == [1, 4]


def test_the_inferred_bias_against_a_loop():
    model, users = build("idcf-nn", bias_shrinkage=4.0).eval(), new_users()
    with torch.no_grad():
        got = model.embed_users(users)
        latents = model.split_latents(induced(model, users.history))
        items, values, offsets = users.history
        for b in range(len(users)):
            entries = slice(offsets[b], offsets[b + 1])
            q = model.embed_items(items[entries])
            p = latents.vector[b].expand_as(q.vector)
            predicted = model.head(p, q.vector[:, None])[:, 0]
            residuals = values[entries] - predicted - latents.bias[b] - q.bias - model.mean
            expected = latents.bias[b] + residuals.sum() / (len(residuals) + 4.0)
            torch.testing.assert_close(got.bias[b], expected)


def test_contrast_against_a_loop():
    """-log softmax over the users of the batch; a second appearance of u is no negative."""
    model = build("idcf-dot").eval()  # no sampling: the latents are those of the objective
    batch = training_batch(model, 300)
    ids = batch.users.ids
    assert len(ids.unique()) < len(ids)
    with torch.no_grad():
        got = adaption_objective(0.5)(model, batch)["contrast"]
        latents = induced(model, batch.users.history)[:, :-1]
        p = model.backbone.user_table.vector
        total = 0.0
        for a in range(len(ids)):
            others = [b for b in range(len(ids)) if b == a or ids[b] != ids[a]]
            logits = torch.stack([p[ids[a]] @ latents[b] for b in others])
            total -= torch.log_softmax(logits, 0)[others.index(a)].item()
    assert float(got) == pytest.approx(0.5 * total / len(ids), rel=1e-4)


def test_without_contrast_adaption_is_prediction():
    model = build("idcf-nn").eval()
    batch = training_batch(model)
    torch.testing.assert_close(
        adaption_objective(0.0)(model, batch), prediction_objective()(model, batch)
    )


def test_the_backbone_given_is_not_touched():
    backbone = trained_in_world("nnmf").model
    before = deepcopy(backbone.state_dict())
    model = IDCF(configure("idcf-nn"), backbone, users_with_rows(TABLE))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(p.requires_grad for p in backbone.parameters())


def test_training_hides_the_target_rating_from_the_graph():
    """idcf-gc scores a training row as if that edge were not in the graph."""
    model = build("idcf-gc", n_attended_users=10_000).train()
    for row in (0, 17, 400):
        table = TABLE.where(np.arange(len(TABLE)) != row)
        backbone = GCMC(model_config("gcmc"), table.domain())
        trained = dict(trained_in_world("gcmc").model.named_parameters())
        backbone.load_state_dict({**backbone.state_dict(), **trained})
        backbone.mean = model.mean  # the mean of the other rows differs
        torch.manual_seed(0)
        config = configure("idcf-gc", {"n_attended_users": 10_000})
        without_edge = IDCF(config, backbone, users_with_rows(TABLE)).train()
        ids = TABLE.user[[row]]
        users = Users(torch.from_numpy(ids), table.history(ids))
        item, owner = torch.tensor([[TABLE.item[row]]]), torch.tensor([0])
        with torch.no_grad():
            got, expected = model(users, item, owner), without_edge(users, item, owner)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
            visible = model.eval()(users, item, owner)
            model.train()
        assert not torch.allclose(got, visible, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_key_user_is_enough(name):
    """The variance over one key user is 0; the scores are still finite."""
    key_users = users_with_rows(TABLE.for_users(SPLIT.key_users[:1]))
    model = IDCF(configure(name), trained_in_world(BACKBONE[name]).model, key_users).eval()
    with torch.no_grad():
        assert torch.isfinite(model.score_catalog(new_users())).all()


def test_an_empty_history_is_scored_without_shrinkage():
    model = build("idcf-dot", bias_shrinkage=0.0).eval()
    user = Users(torch.tensor([-1]), History.empty(1))
    with torch.no_grad():
        assert torch.isfinite(model.score_catalog(user)).all()


def test_options_are_checked():
    with pytest.raises(ConfigError, match="attention"):
        configure("idcf-nn", {"attention": "cosine"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"bias": "own"}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_scores_of_latents_are_those_of_their_embeddings(name, options, training):
    model = build(name, n_attended_users=10_000, **options).train(training)
    batch = training_batch(model, 300)
    users, items, owner = batch.users, batch.items, batch.owner
    encoded = model.encode_history(users.history)
    latents = model.split_latents(model.induce_latents(users.history, encoded))
    embeddings = model.embed_latents(latents, users, encoded)
    expected = model.score_embedded(embeddings, users, items, owner)
    got = model.score_latents(latents, users, encoded, items, owner)
    torch.testing.assert_close(got, expected)
    got = model.score_latents(latents, users, encoded, items.repeat(1, 2), owner)
    torch.testing.assert_close(got, expected.repeat(1, 2))


def test_a_query_without_length_and_latents_without_bias_against_a_loop():
    """d is the mean of q and p̃ = Σ c p with plain p; the induced bias is 0."""
    options = {"query_length": False, "relate_bias": False, "pooling": "mean", "scaled": False}
    model = build("idcf-nn", standardize=False, **options).eval()
    users, relation = new_users(), model.relation
    q, p = model.backbone.item_table.vector, model.backbone.user_table.vector
    keys = p[users_with_rows(TABLE).ids]
    with torch.no_grad():
        relation.query.mul_(20)  # away from the mean
        latents = model.split_latents(induced(model, users.history))
        for b in range(len(users)):
            d = q[users.history.items[users.history.offsets[b] : users.history.offsets[b + 1]]]
            mixed = []
            for h in range(model.config.heads):
                scores = torch.stack(
                    [d.mean(0) @ relation.query[h] @ (k @ relation.key[h]) for k in keys]
                )
                mixed.append(scores.softmax(0) @ keys @ relation.value[h])
            torch.testing.assert_close(latents.vector[b], torch.cat(mixed) @ relation.out)
    assert not latents.bias.any()


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_a_sample_of_each_user_against_a_loop(attention):
    """Attention to keys that are drawn with replacement, user by user and head by head."""
    options = {"n_attended_users": 7, "heads": 2, "attention": attention}
    model = build("idcf-dot", key_sample="user", **options).train()
    users, relation, keys = new_users(), model.relation, model.key_latents
    with torch.no_grad():
        query = model.encode_history(users.history).query
        torch.manual_seed(4)
        got = induced(model, users.history)
        torch.manual_seed(4)
        drawn = torch.randint(len(keys), (2, len(users), 7))
        for b in range(len(users)):
            heads = []
            for h in range(2):
                sample = keys[drawn[h, b]].repeat(2, 1, 1)
                weights = relation.attention_weights(query[[b]], sample, model.key_scale)
                heads.append(weights[h, 0] @ sample[h] @ relation.value[h])
            torch.testing.assert_close(got[b], torch.cat(heads) @ relation.out)
    assert not torch.equal(*drawn[:, 0])
    assert not torch.equal(*drawn[0, :2])
    assert torch.equal(induced(model.eval(), users.history), induced(model, users.history))


@pytest.mark.parametrize("over", ["induced", "trained"])
def test_both_directions_of_the_contrast_against_a_loop(over):
    """The softmax is over induced latents for p_u, or over trained latents for p̃_u."""
    model = build("idcf-dot").eval()
    batch = training_batch(model, 60)
    ids = batch.users.ids
    with torch.no_grad():
        got = adaption_objective(0.5, contrast_over=over)(model, batch)["contrast"]
        latents = induced(model, batch.users.history)[:, :-1]
        p = model.backbone.user_table.vector
        total = 0.0
        for a in range(len(ids)):
            others = [b for b in range(len(ids)) if b == a or ids[b] != ids[a]]
            pairs = [(a, b) if over == "induced" else (b, a) for b in others]
            logits = torch.stack([p[ids[u]] @ latents[v] for u, v in pairs])
            total -= torch.log_softmax(logits, 0)[others.index(a)].item()
    assert float(got) == pytest.approx(0.5 * total / len(ids), rel=1e-4)


def test_a_query_feature_that_key_users_share_is_not_blown_up():
    """If all key users have 20 ratings, log(1 + n) is constant: a user with 4 has a small query."""
    table = TABLE.where(rank_in_user(TABLE, np.arange(len(TABLE))) < 20)
    users = np.flatnonzero(table.user_counts() == 20)
    key_users = Users(torch.from_numpy(users), table.history(users))
    model = IDCF(configure("idcf-nn"), trained_in_world("nnmf").model, key_users)
    history = sample_rows_per_user(table, 4, np.random.default_rng(0)).history(users[:5])
    query = model.encode_history(history).query
    assert torch.allclose(query[:, -1], torch.tensor(np.log(5 / 21)).float(), atol=1e-5)
    assert query.abs().max() < 10
