"""IDCF beyond the battery: its options, what is drawn in training, and what stays put."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from idcf.data import batches
from idcf.errors import ConfigError
from idcf.models.gcmc import GCMC
from idcf.models.idcf import IDCF, part
from idcf.models.registry import configure, model_entry
from idcf.testing import fitted, world
from idcf.testing.worlds import keys_of, some_batches
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import accuracy, adapt
from idcf.types import History, Users

torch.set_num_threads(1)
NAMES = ("idcf-dot", "idcf-nn", "idcf-gc")
BACKBONE = {"idcf-dot": "pmf", "idcf-nn": "nnmf", "idcf-gc": "gcmc"}
SPLIT = world().split
TABLE = SPLIT.train.of(SPLIT.key_users)


def build(name, **options):
    torch.manual_seed(0)
    return IDCF(configure(name, options), fitted(BACKBONE[name]).model, keys_of(TABLE))


def model_config(name):
    return configure(name, model_entry(name).check_options)


def users(n=5):
    who = SPLIT.query_users[:n]
    return Users(torch.from_numpy(who), SPLIT.train.history(who)).anonymous()


def batch(model, size=10_000):
    return next(iter(some_batches(model, TABLE, size)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "literal"},
        {"attention": "additive"},
        {"query": "ratings"},
        {"bias": "own"},
        {"pooling": "sum"},
        {"standardise": False, "scaled": False, "pooling": "mean"},
        {"heads": 1, "sample": 5},
    ],
    ids=str,
)
def test_every_option_trains_and_scores(name, options):
    model = build(name, **options).train()
    sum(adapt(0.1)(model, batch(model)).values()).backward()
    idle = [k for k, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle
    with torch.no_grad():
        scores = model.eval().rank(users())
    assert scores.shape == (5, model.n_items)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", NAMES)
def test_meta_latents_and_items_stay_frozen(name):
    """One step of an optimiser that would move everything it is given."""
    model = build(name).train()
    before = deepcopy(model.state_dict())
    for _ in range(2):  # with standardised queries, a first step may leave a weight at rest
        model.zero_grad()
        sum(adapt(0.1)(model, batch(model)).values()).backward()
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    still = {"keys", "average", "shift", "spread", "key_scale"}
    still |= {k for k in before if k.startswith(("backbone.users.", "backbone.items."))}
    assert not moved & still
    assert "relation.query" in moved
    trained = {k for k, p in model.named_parameters() if p.requires_grad}
    assert moved == trained


def test_training_listens_to_a_sample_and_inference_to_all():
    model, who = build("idcf-dot", sample=3), users()
    with torch.no_grad():
        model.train()
        drawn = [model.induce(who.history, model.take_in(who.history)) for _ in range(2)]
        model.eval()
        fixed = [model.induce(who.history, model.take_in(who.history)) for _ in range(2)]
    assert not torch.allclose(*drawn)
    assert torch.equal(*fixed)


def test_a_sample_is_drawn_for_each_head():
    model = build("idcf-dot", sample=3, heads=2).train()
    torch.manual_seed(0)
    keys = model._listen()
    assert keys.shape[:2] == (2, 3)
    assert not torch.equal(keys[0], keys[1])


def test_an_induced_latent_starts_as_a_weighted_mean_of_the_key_users():
    """p̃ = Σ c p: attention rows sum to one, values and output begin as the identity."""
    model, who = build("idcf-nn").eval(), users()
    with torch.no_grad():
        weights = model.attention(who).mean(0)
        torch.testing.assert_close(
            model.induce(who.history, model.take_in(who.history)), weights @ model.keys
        )
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(who)))


@pytest.mark.parametrize("name", NAMES)
def test_a_new_user_s_bias_is_read_from_the_history(name):
    """Somebody who rates everything one star lower is predicted lower."""
    who = users()
    values = who.history.values - 1
    harsh = Users(who.ids, who.history._replace(values=values))
    with torch.no_grad():
        inferred, own = build(name).eval(), build(name, bias="own").eval()
        assert (inferred.embed_users(harsh).bias < inferred.embed_users(who).bias).all()
        assert not own.embed_users(harsh).bias.any()  # nobody it has met


@pytest.mark.parametrize("name", NAMES)
def test_a_bias_of_one_s_own_is_trained_on_one_s_own_ratings(name):
    """As published: key users start with what they have in the backbone, others from 0."""
    model = build(name, bias="own")
    assert model.inductive
    assert not model.anonymous
    bias = model.backbone.users.bias
    known = Users(torch.tensor([4, 0, 7, 1, 2]), users().history)
    with torch.no_grad():
        bias.copy_(torch.arange(len(bias)) / 10.0)
        assert torch.equal(model.embed_users(known).bias, bias[known.ids])
        assert not model.embed_users(known.anonymous()).bias.any()
    few = TABLE.of(np.array([1, 4]))
    start = bias.detach().clone()
    config = TrainConfig(learning_rate=0.01, epochs=1)
    rows = batches.rows(few, few, size=64, rng=np.random.default_rng(0))
    fit(model, lambda _: rows, adapt(0.0), config)
    moved = torch.nonzero(bias.detach() != start)[:, 0]
    assert moved.tolist() == [1, 4]


def test_the_inferred_bias_against_a_loop():
    model, who = build("idcf-nn", bias_strength=4.0).eval(), users()
    with torch.no_grad():
        got = model.embed_users(who)
        induced = model.induce(who.history, model.take_in(who.history))
        latents, biases = induced[:, :-1], induced[:, -1]
        items, values, offsets = who.history
        for b in range(len(who)):
            mine = slice(offsets[b], offsets[b + 1])
            q = model.embed_items(items[mine])
            usual = biases[b]
            guess = model.head(latents[b].expand_as(q.vector), q.vector[:, None])[:, 0]
            left = values[mine] - guess - usual - q.bias - model.mean
            expected = usual + left.sum() / (len(left) + 4.0)
            torch.testing.assert_close(got.bias[b], expected)


def test_contrast_against_a_loop():
    """-log softmax over the users of the batch; a second appearance of u is no counter-example."""
    model = build("idcf-dot").eval()  # no sampling: the same latents here and there
    some = batch(model, 300)
    ids = some.users.ids
    assert len(ids.unique()) < len(ids)
    with torch.no_grad():
        got = adapt(0.5)(model, some)["contrast"]
        encoded = model.take_in(some.users.history)
        induced = model.induce(some.users.history, encoded)[:, :-1]
        p = model.backbone.users.vector
        total = 0.0
        for a in range(len(ids)):
            others = [b for b in range(len(ids)) if b == a or ids[b] != ids[a]]
            logits = torch.stack([p[ids[a]] @ induced[b] for b in others])
            total -= torch.log_softmax(logits, 0)[others.index(a)].item()
    assert float(got) == pytest.approx(0.5 * total / len(ids), rel=1e-4)


def test_without_contrast_adapting_is_fitting():
    model = build("idcf-nn").eval()
    some = batch(model)
    torch.testing.assert_close(adapt(0.0)(model, some), accuracy()(model, some))


def test_the_backbone_given_is_not_touched():
    backbone = fitted("nnmf").model
    before = deepcopy(backbone.state_dict())
    model = IDCF(configure("idcf-nn"), backbone, keys_of(TABLE))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(p.requires_grad for p in backbone.parameters())


def test_in_training_the_own_rating_is_hidden_from_the_graph():
    """idcf-gc scores a training row as if that edge had never been in the graph."""
    model = build("idcf-gc", sample=10_000).train()
    for row in (0, 17, 400):
        rest = TABLE.where(np.arange(len(TABLE)) != row)
        bare = GCMC(model_config("gcmc"), rest.domain())
        bare.load_state_dict({**bare.state_dict(), **dict(fitted("gcmc").model.named_parameters())})
        bare.mean = model.mean  # the edge counts there, too
        torch.manual_seed(0)
        without = IDCF(configure("idcf-gc", {"sample": 10_000}), bare, keys_of(TABLE)).train()
        who = TABLE.user[[row]]
        asked = Users(torch.from_numpy(who), rest.history(who))
        item, owner = torch.tensor([[TABLE.item[row]]]), torch.tensor([0])
        with torch.no_grad():
            got, expected = model(asked, item, owner), without(asked, item, owner)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
            shown = model.eval()(asked, item, owner)
            model.train()
        assert not torch.allclose(got, shown, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_key_user_is_enough(name):
    """Nothing to standardise by, but an answer all the same."""
    keys = keys_of(TABLE.of(SPLIT.key_users[:1]))
    model = IDCF(configure(name), fitted(BACKBONE[name]).model, keys).eval()
    with torch.no_grad():
        assert torch.isfinite(model.rank(users())).all()


def test_a_strength_of_zero_still_answers_somebody_without_history():
    model = build("idcf-dot", bias_strength=0.0).eval()
    nobody = Users(torch.tensor([-1]), History.empty(1))
    with torch.no_grad():
        assert torch.isfinite(model.rank(nobody)).all()


def test_options_are_checked():
    with pytest.raises(ConfigError, match="attention"):
        configure("idcf-nn", {"attention": "cosine"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"bias": "own"}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_an_answer_is_the_score_of_the_placed(name, options, training):
    model = build(name, sample=10_000, **options).train(training)
    some = batch(model, 300)
    encoded = model.take_in(some.users.history)
    own = part(model.induce(some.users.history, encoded))
    placed = model.place(own, some.users, encoded)
    expected = model.score(placed, some.users, some.items, some.owner)
    got = model.answer(own, some.users, encoded, some.items, some.owner)
    torch.testing.assert_close(got, expected)
    twice = some.items.repeat(1, 2)
    got = model.answer(own, some.users, encoded, twice, some.owner)
    torch.testing.assert_close(got, expected.repeat(1, 2))
