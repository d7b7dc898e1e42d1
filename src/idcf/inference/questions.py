"""Questions to ask a new user: the items whose answers would say most.

With ratings the answer is a rating, and the gain is that of the posterior
(`Model.question_gains`). With clicks the answer is whether the user took the item up, or knows it,
and the gain is the entropy of that answer in bits:

    -P log₂ P - (1 - P) log₂ (1 - P),

where P is the probability of the item. So the most likely items are asked about, unless one is more
likely than not. What the answer changes in the other probabilities is no better guide
(docs/negative-results.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from scipy.special import entr

from idcf.data.history_reader import NewUser, as_users
from idcf.data.interactions import Floats
from idcf.inference.abilities import missing_ability
from idcf.inference.predictor import Predictor
from idcf.inference.topk import mask_scores_1d, top_k_1d
from idcf.results import Question

_NATS_PER_BIT = 0.6931471805599453


def next_questions(
    predictor: Predictor, new_user: NewUser, n: int, candidates: Iterable[Any] | None = None
) -> list[Question]:
    """Return the n items, not in the history, whose answers would say most about a new user.

    `candidates` are ids of the only items to ask about, with ratings those that the user knows;
    None: all items, weighted by how likely a user knows them. ConfigError: the model suggests no
    questions.
    """
    model = predictor.ranker.model
    candidate_rows = predictor.make_filters(candidates, None).candidates
    if model.suggests_questions:
        users = as_users([new_user]).to(model.device)
        with torch.inference_mode():
            expected_gains = model.question_gains(users, items_are_known=candidates is not None)
        gains: Floats = expected_gains[0].cpu().numpy()
    elif model.predicts_probabilities:
        p = predictor.ranker.score_one_user(new_user.item_rows, new_user.values, new_user.features)
        gains = (entr(p) + entr(1 - p)) / _NATS_PER_BIT
    else:
        raise missing_ability("next_question", predictor.artifact)
    mask_scores_1d(gains, new_user.item_rows, candidate_rows)
    rows = top_k_1d(gains, n).tolist()
    return [Question(predictor.item_ids[r], predictor.titles[r], float(gains[r])) for r in rows]
