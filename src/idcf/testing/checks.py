"""The checks that every model of the registry must pass, whatever it is made of.

`model_checks(name)` returns the checks of one model. A check that does not apply is left out: a
model with a solver has no gradients, and a model that is not inductive cannot score new users.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions, Ints
from idcf.errors import ColdUserError, ConfigError
from idcf.inference.scoring import rmse_on
from idcf.inference.topk import CatalogRanker
from idcf.models.base import BackboneWrapper, Model
from idcf.models.registry import ModelEntry, model_entry, resolve_model
from idcf.testing.worlds import (
    SyntheticWorld,
    epoch_batches,
    synthetic_world,
    train_in_world,
    trained_in_world,
    training_objective,
    untrained_model,
    users_with_rows,
)
from idcf.training.train import TrainingJob, TrainingResult, train
from idcf.types import Embeddings, History, Users, select_histories

Check = Callable[[], None]
_RELATIVE_TOLERANCE = 1e-5
_MIN_AUC = 0.8  # of liked above other items, for a model that has learnt
_MAX_RELATIVE_RMSE = 0.8  # RMSE / RMSE of the mean rating, for a model that has learnt
# EASE reads missing ratings as average ones: the sign of its deviations is right, the size small
_MAX_RELATIVE_RMSE_BY_MODEL = {"ease": 0.95}


def model_checks(name: str) -> list[Check]:
    """Return every check that applies to a model of the registry or of an installed plugin.

    Returns
    -------
    list of functools.partial
        Functions without arguments that raise `AssertionError` if a check fails. `func` is one of
        the `check_…` functions of this module; `args` are the name and, except for
        `check_refuses_unsupported_feedback`, whether the world has implicit feedback.
    """
    entry = model_entry(name)
    checks = [*_CHECKS_OF_ALL_MODELS]
    if entry.inductive:
        checks += _CHECKS_OF_INDUCTIVE_MODELS
    else:
        checks.append(check_raises_for_unknown_users)
    if is_trained_by_gradient(entry):
        checks.append(check_gradients_reach_every_parameter)
    if entry.backbone:
        checks.append(check_empty_history_is_the_mean_of_the_key_users)
    settings = implicit_settings(entry)
    bound_checks: list[Check] = [
        partial(check, name, implicit) for implicit in settings for check in checks
    ]
    if len(settings) == 1:
        bound_checks.append(partial(check_refuses_unsupported_feedback, name))
    return bound_checks


def implicit_settings(entry: ModelEntry) -> tuple[bool, ...]:
    """Return the kinds of feedback that a model takes: False for ratings, True for implicit."""
    settings = ((False, not entry.implicit_only), (True, not entry.ratings_only))
    return tuple(implicit for implicit, is_supported in settings if is_supported)


def is_trained_by_gradient(entry: ModelEntry) -> bool:
    """Return whether a model has weights that gradients reach."""
    model_class = entry.model_class
    if issubclass(model_class, BackboneWrapper) and not model_class.has_adaption_stage:
        return False
    return not entry.solver


def check_scores_are_finite_and_shaped(name: str, implicit: bool) -> None:
    """Scores have the documented shapes, are finite, and `forward` equals `score_catalog`."""
    trained, users = trained_and_key_users(name, implicit)
    model, rng = trained.model, torch.Generator().manual_seed(0)
    with torch.no_grad():
        catalog_scores = model.score_catalog(users)
        owner = torch.arange(len(users)).flip(0).repeat(2)
        items = torch.randint(model.n_items, (len(owner), 7), generator=rng)
        scores = model(users, items, owner)
    assert catalog_scores.shape == (len(users), model.n_items)
    assert scores.shape == items.shape
    assert torch.isfinite(catalog_scores).all()
    expected = catalog_scores[owner[:, None], items]
    assert_scores_equal(scores, expected, "forward and score_catalog")


def check_learns(name: str, implicit: bool) -> None:
    """The model ranks liked items first and predicts held-out ratings better than their mean."""
    world, trained = world_for(name, implicit), trained_for_checks(name, implicit)
    split = world.split
    assignments = [(trained.key_user_model, split.key_users)]
    if trained.model.inductive:
        assignments.append((trained.model, split.query_users))
    for model, users in assignments:
        auc = liked_items_auc(world, model, users)
        assert auc > _MIN_AUC, f"{name}: AUC {auc:.3f} of liked items, not above {_MIN_AUC}"
        if model.predicts_ratings:
            rows = split.test.for_users(users)
            error = rmse_on(model, rows, split.train)
            error_of_mean = np.sqrt(np.mean((rows.rating - split.train.rating.mean()) ** 2))
            bound = _MAX_RELATIVE_RMSE_BY_MODEL.get(name, _MAX_RELATIVE_RMSE) * float(error_of_mean)
            assert error < bound, f"{name}: RMSE {error:.3f}, not below {bound:.3f}"


def check_a_batch_equals_one_by_one(name: str, implicit: bool) -> None:
    """The scores of a user do not depend on the other users of the batch."""
    trained, users = trained_and_key_users(name, implicit)
    model = trained.model
    batch_scores = score_catalog(model, users)
    for row in range(len(users)):
        scores = score_catalog(model, select_users(users, [row]))[0]
        assert_scores_equal(scores, batch_scores[row], "alone and in a batch")
    rows = [4, 0, 4, 2, 4]
    scores = score_catalog(model, select_users(users, rows))
    assert_scores_equal(scores, batch_scores[rows], "in another batch")


def check_order_of_the_history_does_not_matter(name: str, implicit: bool) -> None:
    """A shuffled history gives the same scores."""
    trained, users = trained_and_key_users(name, implicit)
    items, values, offsets = users.history
    keys = torch.rand(len(items), generator=torch.Generator().manual_seed(1))
    order = np.lexsort((keys.numpy(), users.history.owner().numpy()))
    shuffled = History(items[order], values[order], offsets)
    assert not torch.equal(shuffled.items, items)
    scores = score_catalog(trained.model, Users(users.ids, shuffled, users.features))
    assert_scores_equal(scores, score_catalog(trained.model, users), "a shuffled history")


def check_same_seed_same_weights(name: str, implicit: bool) -> None:
    """Two runs of one seed give equal bits, whatever the state of the global generators."""
    states = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        trained = train_in_world(
            name, implicit=implicit, shared_taste=needs_shared_taste(name), epochs=2
        )
        states.append(trained.model.state_dict())
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), f"{name}: two runs of one seed differ in {key}"


def check_state_dict_is_complete(name: str, implicit: bool) -> None:
    """A new model with the trained weights gives the same scores, also if it has scored before."""
    trained, users = trained_and_key_users(name, implicit)
    table = training_table(name, implicit)
    loaded = untrained_model(name, table, users_with_rows(table), options=trained.options).eval()
    score_catalog(loaded, users)  # a model that caches values must drop them when weights change
    loaded.load_state_dict(trained.model.state_dict())
    expected = score_catalog(trained.model, users)
    assert_scores_equal(score_catalog(loaded, users), expected, "after loading")


def check_weights_are_contiguous(name: str, implicit: bool) -> None:
    """Weights are contiguous in memory, as files and the inference kernels need them."""
    state = trained_for_checks(name, implicit).model.state_dict()
    strided = [key for key, value in state.items() if not value.is_contiguous()]
    assert not strided, f"{name}: {', '.join(strided)} not contiguous"


def check_freezing_changes_nothing(name: str, implicit: bool) -> None:
    """`freeze` turns off gradients and training mode, and leaves the scores as they are."""
    trained, users = trained_and_key_users(name, implicit)
    expected = score_catalog(trained.model, users)
    frozen = deepcopy(trained.model)
    frozen.freeze()
    assert not frozen.training
    assert not any(p.requires_grad for p in frozen.parameters())
    for _ in range(2):  # the second call may use cached values
        assert_scores_equal(score_catalog(frozen, users), expected, "frozen and not frozen")


def check_similarities_of_items(name: str, implicit: bool) -> None:
    """A model has similarities between items if it says so, and those among some items agree with
    those of each of them to all items."""
    model = deepcopy(trained_for_checks(name, implicit).model)
    if not model.has_item_similarities:
        assert model.item_similarities(0) is None, f"{name}: has_item_similarities is not set"
        return
    ranker, rows = CatalogRanker(model), np.array([3, 0, 11])
    expected = np.stack([ranker.item_similarities(row)[rows] for row in rows.tolist()])
    scores = torch.from_numpy(ranker.similarities_among(rows))
    assert_scores_equal(scores, torch.from_numpy(expected), "similarities of some items")


def check_identity_does_not_leak(name: str, implicit: bool) -> None:
    """An inductive model gives exactly equal scores without user ids, and with wrong ones."""
    trained, users = trained_and_key_users(name, implicit)
    expected = score_catalog(trained.model, users)
    other_ids = Users(users.ids.flip(0), users.history, users.features)
    for others in (users.anonymous(), other_ids):
        scores = score_catalog(trained.model, others)
        assert_scores_equal(scores, expected, "another user id", exact=True)


def check_an_equal_history_gets_the_same_list(name: str, implicit: bool) -> None:
    """A new user with the history of a key user gets the list of that key user. The lists are equal
    where one model scores both. A wrapper approximates its backbone, which scores the key users:
    then the lists overlap and the scores correlate."""
    trained, users = trained_and_key_users(name, implicit, n_users=40)
    key_scores = score_catalog(trained.key_user_model, users)
    if trained.model.reads_user_features and trained.key_user_model is not trained.model:
        return  # a wrapper that reads features in place of histories has another view of users
    new_scores = score_catalog(trained.model, users.anonymous())
    if trained.key_user_model is trained.model:
        assert_scores_equal(new_scores, key_scores, "an equal history", exact=True)
        return
    k = key_scores.shape[1] // 2  # the items that a user likes; their order is noise
    key_lists, new_lists = (x.topk(k).indices.tolist() for x in (key_scores, new_scores))
    shared = [len({*a} & {*b}) / k for a, b in zip(key_lists, new_lists, strict=True)]
    overlap = float(np.mean(shared))
    assert overlap > 0.9, f"{name}: equal histories share {overlap:.2f} of their lists"
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(key_scores, new_scores, strict=True)]
    mean = float(np.mean(correlations))
    assert mean > 0.9, f"{name}: scores of equal histories correlate at {mean:.2f}"


def check_empty_histories_get_one_finite_answer(name: str, implicit: bool) -> None:
    """All users without a history get the same finite scores, alone and in any batch."""
    trained, users = trained_and_key_users(name, implicit)
    expected = score_catalog(trained.model, users_without_history(1))
    assert torch.isfinite(expected).all()
    torch.manual_seed(12)
    offsets = users.history.offsets
    history = users.history._replace(offsets=torch.cat([offsets, offsets[-1:].expand(2)]))
    batch = Users(torch.tensor([*users.ids, -1, -1]), history)
    for scores in score_catalog(trained.model, batch)[-2:]:
        assert_scores_equal(scores, expected[0], "an empty history")


def check_empty_history_is_the_mean_of_the_key_users(name: str, implicit: bool) -> None:
    """A wrapper embeds an empty history as the mean of the key users, and changes no backbone."""
    trained = trained_for_checks(name, implicit)
    model, user = trained.model, users_without_history(1)
    assert isinstance(model, BackboneWrapper)
    with torch.no_grad():
        key_users = model.backbone.user_table(users_with_rows(training_table(name, implicit)).ids)
        mean = Embeddings(key_users.vector.mean(0)[None], key_users.bias.mean()[None])
        embeddings = model.backbone.user_tower(mean, user)
        expected = model.score_all_pairs(embeddings, model.embed_catalog())
    assert_scores_equal(score_catalog(model, user), expected, "the mean of the key users")
    for side in ("user_table", "item_table"):
        wrapped, pretrained = (getattr(x, side) for x in (model.backbone, trained.key_user_model))
        equal = torch.equal(wrapped.vector, pretrained.vector)
        assert equal, f"{name} changed its backbone's {side}"


def check_gradients_reach_every_parameter(name: str, implicit: bool) -> None:
    """Every parameter that is not frozen gets a gradient that is finite and not all zero; single
    zeros are allowed, as a network may have dead units."""
    table = training_table(name, implicit)
    model = deepcopy(trained_for_checks(name, implicit).model).train()
    objective = training_objective(model, table, model_entry(name).check_loss)
    for batch in epoch_batches(model, table, len(table)):
        loss = torch.stack([*objective(model, batch).values()]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
    parameters = {k: p.grad for k, p in model.named_parameters() if p.requires_grad}
    assert parameters, f"{name} has no parameter to train"
    zero = [k for k, gradient in parameters.items() if gradient is None or not gradient.any()]
    assert not zero, f"{name}: no gradient reaches {', '.join(zero)}"
    infinite = [k for k, g in parameters.items() if g is not None and not g.isfinite().all()]
    assert not infinite, f"{name}: the gradient of {', '.join(infinite)} is not finite"


def check_raises_for_unknown_users(name: str, implicit: bool) -> None:
    """A model that is not inductive raises `ColdUserError` for new users."""
    trained, key_users = trained_and_key_users(name, implicit)
    users, items = key_users.anonymous(), torch.zeros(len(key_users), 1, dtype=torch.int64)
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: trained.model.score_catalog(users),
        lambda: trained.model(users, items, torch.arange(len(users))),
    )
    for call in calls:
        try:
            call()
        except ColdUserError:
            continue
        raise AssertionError(f"{name} is not inductive, yet it scores new users")


def check_refuses_unsupported_feedback(name: str) -> None:
    """Training on the other kind of feedback raises `ConfigError`, or trains `implicit_model`."""
    entry = model_entry(name)
    implicit = not implicit_settings(entry)[0]
    job = TrainingJob(synthetic_world(implicit=implicit).split)
    if implicit and entry.implicit_model:
        trained = train(name, job)
        assert type(trained.model) is model_entry(resolve_model(name, True)).model_class
        return
    try:
        train(name, job)
    except ConfigError:
        return
    kind = "implicit feedback" if implicit else "ratings"
    raise AssertionError(f"{name} does not take {kind}, yet it was trained on it")


_CHECKS_OF_ALL_MODELS = (
    check_scores_are_finite_and_shaped,
    check_learns,
    check_a_batch_equals_one_by_one,
    check_order_of_the_history_does_not_matter,
    check_same_seed_same_weights,
    check_state_dict_is_complete,
    check_weights_are_contiguous,
    check_freezing_changes_nothing,
    check_similarities_of_items,
)
_CHECKS_OF_INDUCTIVE_MODELS = (
    check_identity_does_not_leak,
    check_an_equal_history_gets_the_same_list,
    check_empty_histories_get_one_finite_answer,
)


def needs_shared_taste(name: str) -> bool:
    """Return whether a model, or its backbone, is checked in a world of one shared taste.

    A model without an interaction term, or without features to tell users apart, learns no taste.
    Nor does F-EAE: it knows users and items by their rows and columns alone, and the two halves of
    a checkerboard are symmetric, so it encodes them alike.
    """
    entry = model_entry(name)
    if entry.backbone and needs_shared_taste(entry.backbone):
        return True
    return entry.learns_item_quality_only


def world_for(name: str, implicit: bool) -> SyntheticWorld:
    """Return the world that a model is checked in."""
    return synthetic_world(
        implicit=implicit,
        shared_taste=needs_shared_taste(name),
        features=model_entry(name).learns_from_features,
    )


def training_table(name: str, implicit: bool) -> Interactions:
    """Return the rows that a model is trained on: those of the key users of its world."""
    split = world_for(name, implicit).split
    return split.train.for_users(split.key_users)


def trained_for_checks(name: str, implicit: bool) -> TrainingResult:
    """Return the model trained in its world, cached: copy it before changing it."""
    return trained_in_world(name, implicit=implicit, shared_taste=needs_shared_taste(name))


def trained_and_key_users(
    name: str, implicit: bool, n_users: int = 6
) -> tuple[TrainingResult, Users]:
    """Return the trained model and the first key users of its world."""
    split = world_for(name, implicit).split
    user_rows = split.key_users[:n_users]
    return trained_for_checks(name, implicit), split.train.build_users(user_rows)


def score_catalog(model: Model, users: Users) -> Tensor:
    """Score the whole catalogue without gradients: [B, I]."""
    with torch.no_grad():
        return model.score_catalog(users)


def assert_scores_equal(
    scores: Tensor, expected: Tensor, description: str, *, exact: bool = False
) -> None:
    """Raise `AssertionError` if scores differ by more than rounding, or at all if `exact`."""
    difference = float((scores - expected).abs().max())
    bound = 0.0 if exact else _RELATIVE_TOLERANCE * max(1.0, float(expected.abs().max()))
    assert difference <= bound, f"{description}: scores differ by {difference:.2e}"


def select_users(users: Users, rows: list[int]) -> Users:
    """Return the users of these rows, with their histories and features."""
    index = torch.tensor(rows)
    features = None if users.features is None else users.features[index]
    return Users(users.ids[index], select_histories(users.history, index), features)


def users_without_history(n_users: int) -> Users:
    """Return new users with empty histories."""
    return Users(torch.full((n_users,), -1), History.empty(n_users))


def liked_items_auc(world: SyntheticWorld, model: Model, user_rows: Ints) -> float:
    """Return how often an item that a user likes scores above one that the user does not."""
    users = world.split.train.build_users(user_rows)
    scores = score_catalog(model, users.anonymous() if model.inductive else users).numpy()
    liked = world.likes(user_rows[:, None], np.arange(scores.shape[1])[None])
    auc_by_user = [
        np.mean((s[x][:, None] > s[~x]) + 0.5 * (s[x][:, None] == s[~x]))
        for s, x in zip(scores, liked, strict=True)
    ]
    return float(np.mean(auc_by_user))
