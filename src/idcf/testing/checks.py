"""What every model of the table must keep, whatever it is made of.

`for check in model_checks("mine"): check()` runs them over one row. A check that does not apply to
a row is not yielded: a solved model has no gradients, a transductive one no new users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial

import numpy as np
import torch

from idcf.errors import ColdUserError, ConfigError
from idcf.inference.scoring import rmse_on
from idcf.models.base import Model, Wrapper
from idcf.models.registry import ModelEntry, model_entry, resolve_model
from idcf.testing.probes import (
    auc,
    home,
    known,
    nobody,
    plain,
    rank,
    same,
    table_of,
    take,
    trained_in,
    with_nobody,
)
from idcf.testing.worlds import blank, keys_of, learn, objective_of, some_batches, world
from idcf.training.train import Job, train
from idcf.types import Embedded, History, Users

Check = Callable[[], None]
_ERROR = 0.8  # of the mean's; what counts as learnt
# EASE takes what nobody rated for average, so it is right about the side and timid about the size
_TIMID = {"ease": 0.95}


def model_checks(name: str) -> Iterator[Check]:
    """Every check of this row, in a world with ratings and, where it takes it, in one without."""
    found = model_entry(name)
    for implicit in kinds(found):
        for check in _ALWAYS:
            yield partial(check, name, implicit)
        for check in _INDUCTIVE if _inductive(found) else (check_says_whom_it_cannot_know,):
            yield partial(check, name, implicit)
        if descended(found):
            yield partial(check_gradients_reach_every_parameter, name, implicit)
        if found.backbone:
            yield partial(check_nobody_is_the_mean_of_the_key_users, name, implicit)
    if len(kinds(found)) == 1:
        yield partial(check_refuses_what_it_cannot_read, name)


def kinds(found: ModelEntry) -> tuple[bool, ...]:
    """The worlds a row itself is trained in: without ratings, with, or both."""
    return tuple(x for x in (False, True) if not (found.ratings_only if x else found.implicit_only))


def descended(found: ModelEntry) -> bool:
    """Has the row weights that gradients reach? Some are solved, some solve for whoever comes."""
    return not found.solver and getattr(found.model_class, "adapts", True)


def check_scores_are_finite_and_shaped(name: str, implicit: bool) -> None:
    """`forward` and `rank` are two ways to the same number."""
    trained, users = known(name, implicit)
    model, draw = trained.model, torch.Generator().manual_seed(0)
    with torch.no_grad():
        ranked = model.rank(users)
        owner = torch.arange(len(users)).flip(0).repeat(2)
        items = torch.randint(model.n_items, (len(owner), 7), generator=draw)
        scores = model(users, items, owner)
    assert ranked.shape == (len(users), model.n_items)
    assert scores.shape == items.shape
    assert torch.isfinite(ranked).all()
    same(scores, ranked[owner[:, None], items], "forward and rank")


def check_learns(name: str, implicit: bool) -> None:
    """Who likes what is known in these worlds; the rows asked about were not trained on."""
    place = home(name, implicit)
    split, trained = place.split, trained_in(name, implicit)
    for who, model in ((split.key_users, trained.known), (split.query_users, trained.model)):
        if who is split.query_users and not model.inductive:
            continue
        assert auc(place, model, who) > 0.8, f"{name} orders items as chance would"
        rows = split.test.of(who)
        if model.rates:
            error = rmse_on(model, rows, split.train)
            mean = float(np.sqrt(np.mean((rows.rating - split.train.rating.mean()) ** 2)))
            bound = _TIMID.get(name, _ERROR) * mean
            assert error < bound, f"{name}: RMSE {error:.3f}, not below {bound:.3f}"


def check_a_batch_equals_one_by_one(name: str, implicit: bool) -> None:
    """And what else is in the batch, or how often, changes nothing."""
    trained, users = known(name, implicit)
    model = trained.model
    together = rank(model, users)
    for row in range(len(users)):
        same(rank(model, take(users, [row]))[0], together[row], "alone and together")
    mixed = [4, 0, 4, 2, 4]
    same(rank(model, take(users, mixed)), together[mixed], "in another batch")


def check_order_of_the_history_does_not_matter(name: str, implicit: bool) -> None:
    trained, users = known(name, implicit)
    items, values, offsets = users.history
    drawn = torch.rand(len(items), generator=torch.Generator().manual_seed(1))
    order = np.lexsort((drawn.numpy(), users.history.owner().numpy()))
    shuffled = History(items[order], values[order], offsets)
    assert not torch.equal(shuffled.items, items)
    other = Users(users.ids, shuffled)
    same(rank(trained.model, other), rank(trained.model, users), "the shuffled history")


def check_same_seed_same_weights(name: str, implicit: bool) -> None:
    """Bit for bit, whatever the global generators were up to."""
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        trained = learn(name, implicit=implicit, alike=plain(name), epochs=2)
        found.append(trained.model.state_dict())
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), f"{name}: two runs of one seed differ in {key}"


def check_state_is_all_there_is(name: str, implicit: bool) -> None:
    """A model built anew from other data of the same shape scores the same with these weights,
    even if it was asked before they came."""
    trained, users = known(name, implicit)
    table = table_of(name, implicit)
    fresh = blank(name, table, keys_of(table), options=trained.options).eval()
    rank(fresh, users)
    fresh.load_state_dict(trained.model.state_dict())
    same(rank(fresh, users), rank(trained.model, users), "after loading")


def check_weights_lie_in_order(name: str, implicit: bool) -> None:
    """Contiguous in memory: what files ask for, and what the fast kernels ask for."""
    state = trained_in(name, implicit).model.state_dict()
    across = [k for k, v in state.items() if not v.is_contiguous()]
    assert not across, f"{name}: {', '.join(across)} not contiguous"


def check_freezing_changes_nothing(name: str, implicit: bool) -> None:
    trained, users = known(name, implicit)
    frozen = deepcopy(trained.model)
    frozen.freeze()
    assert not frozen.training
    assert not any(p.requires_grad for p in frozen.parameters())
    for _ in range(2):  # the second time from what it kept
        same(rank(frozen, users), rank(trained.model, users), "frozen and not")


def check_identity_does_not_leak(name: str, implicit: bool) -> None:
    """People are known by what they did: without a name, or under somebody else's, all the same."""
    trained, users = known(name, implicit)
    expected = rank(trained.model, users)
    other = Users(users.ids.flip(0), users.history)
    for who in (users.anonymous(), other):
        same(rank(trained.model, who), expected, "another identity", exact=True)


def check_a_twin_gets_the_same_list(name: str, implicit: bool) -> None:
    """Somebody new with the history of a known user: the list that the model that knows that
    user gives. IDCF only imitates it, the baselines know nobody to begin with."""
    trained, users = known(name, implicit, n=40)
    own, twin = rank(trained.known, users), rank(trained.model, users.anonymous())
    if trained.known is trained.model:
        same(twin, own, "the twin", exact=True)
        return
    half = own.shape[1] // 2  # inside what they like the order is noise
    best = zip(own.topk(half).indices.tolist(), twin.topk(half).indices.tolist(), strict=True)
    overlap = float(np.mean([len({*a} & {*b}) / half for a, b in best]))
    assert overlap > 0.9, f"{name}: twins share {overlap:.2f} of their lists"
    alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(own, twin, strict=True)]
    assert float(np.mean(alike)) > 0.9, f"{name}: twins' scores correlate at {np.mean(alike):.2f}"


def check_nothing_known_is_no_chance(name: str, implicit: bool) -> None:
    """Everybody without history gets one finite answer, the same today and tomorrow."""
    trained, users = known(name, implicit)
    first = rank(trained.model, nobody(1))
    assert torch.isfinite(first).all()
    torch.manual_seed(12)
    crowd = Users(torch.tensor([*users.ids, -1, -1]), with_nobody(users.history, 2))
    for row in rank(trained.model, crowd)[-2:]:
        same(row, first[0], "an empty history")


def check_nobody_is_the_mean_of_the_key_users(name: str, implicit: bool) -> None:
    """The empty history of a wrapped backbone, computed by hand from its backbone's tables."""
    trained = trained_in(name, implicit)
    model, empty = trained.model, nobody(1)
    assert isinstance(model, Wrapper)
    with torch.no_grad():
        keys = model.backbone.users(keys_of(table_of(name, implicit)).ids)
        mean = Embedded(keys.vector.mean(0)[None], keys.bias.mean()[None])
        user = model.backbone.compose(mean, empty)
        expected = model.match_all(user, model.catalogue())
    same(rank(model, empty), expected, "the mean of the key users")
    for side in ("users", "items"):  # frozen: they are still what the backbone learnt
        kept, learnt = getattr(model.backbone, side), getattr(trained.known, side)
        assert torch.equal(kept.vector, learnt.vector), f"{name} changed its backbone's {side}"


def check_gradients_reach_every_parameter(name: str, implicit: bool) -> None:
    """One step in training mode. What is frozen on purpose (P and Q under IDCF) asks for none; a
    network may have dead units, a whole tensor of zeros is a part that nothing depends on."""
    table = table_of(name, implicit)
    model = deepcopy(trained_in(name, implicit).model).train()
    for batch in some_batches(model, table, len(table)):
        sum(
            objective_of(model, table, model_entry(name).check_loss)(model, batch).values()
        ).backward()  # type: ignore[union-attr]
    trained = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
    assert trained, f"{name} has nothing to train"
    idle = [k for k, p in trained if p.grad is None or not p.grad.any()]
    assert not idle, f"{name}: no gradient reaches {', '.join(idle)}"
    strange = [k for k, p in trained if p.grad is not None and not p.grad.isfinite().all()]
    assert not strange, f"{name}: the gradient of {', '.join(strange)} is not finite"


def check_says_whom_it_cannot_know(name: str, implicit: bool) -> None:
    trained, users = known(name, implicit)
    items = torch.zeros(len(users), 1, dtype=torch.int64)
    for ask in (
        lambda who: trained.model.rank(who),
        lambda who: trained.model(who, items, torch.arange(len(users))),
    ):
        try:
            ask(users.anonymous())
        except ColdUserError:
            continue
        raise AssertionError(f"{name} is not inductive, yet it answers somebody it never met")


def check_refuses_what_it_cannot_read(name: str) -> None:
    """A world of the other kind, unless another row stands in there."""
    other = not kinds(model_entry(name))[0]
    if other and model_entry(name).implicit_model:
        trained = train(name, Job(world(implicit=True).split))
        assert type(trained.model) is model_entry(resolve_model(name, True)).model_class
        return
    try:
        train(name, Job(world(implicit=other).split))
    except ConfigError:
        return
    raise AssertionError(f"{name} takes one kind of data only, yet it was trained on the other")


_ALWAYS = (
    check_scores_are_finite_and_shaped,
    check_learns,
    check_a_batch_equals_one_by_one,
    check_order_of_the_history_does_not_matter,
    check_same_seed_same_weights,
    check_state_is_all_there_is,
    check_weights_lie_in_order,
    check_freezing_changes_nothing,
)
_INDUCTIVE = (
    check_identity_does_not_leak,
    check_a_twin_gets_the_same_list,
    check_nothing_known_is_no_chance,
)


def _inductive(found: ModelEntry) -> bool:
    assert isinstance(found.model_class, type)
    assert issubclass(found.model_class, Model)
    return found.model_class.inductive
