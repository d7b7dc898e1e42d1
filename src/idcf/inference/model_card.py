"""What a person should know before using a saved model, as a page that lies beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idcf.inference.manifest import Manifest


def card(manifest: Manifest) -> str:
    """The page, in Markdown."""
    m, w = manifest, manifest.domain
    options = ", ".join(f"{k}={v}" for k, v in m.options.items()) or "none"
    return f"""# {m.model}

Recommends to people it has never met, from what they did{_known(m)}.

{_origin(m)}; options: {options}.
- **Inside** vectors of items and key users. No names and no histories of users are stored.
- **Limits** Items that nobody had in training are unknown to it and cannot be recommended. A
  person without any history gets what is popular. {_quality(m)}
- **Catalogue** {w.n_items:,} items.
- **Versions** {", ".join(f"{k} {v}" for k, v in m.versions.items())}
{_curve(m)}"""


def _quality(m: Manifest) -> str:
    if m.measured:
        return "What it is worth to a newcomer is below."
    return (
        "Accuracy was not measured when this was\n  written: train with `measure=True`, or run "
        "`idcf evaluate` on data of your own."
    )


def _curve(m: Manifest) -> str:
    """What newcomers may expect, by how much they have told."""
    if not (found := m.measured):
        return ""
    better = "less is better" if found.metric == "rmse" else "more is better"
    lines = [
        f"| {p.shown} | {p.value:.3f} [{p.low:.3f}, {p.high:.3f}] | {p.plain:.3f} |"
        for p in found.curve
    ]
    sure = ""
    if found.cover90 is not None:
        sure = f"\nOf their ratings {found.cover90:.1%} lay inside the 90 % intervals.\n"
    table = "\n".join(lines)
    return f"""
## What newcomers may expect

The same training without {found.people:,} of the key users, who then came as newcomers with some of
their interactions and were asked about {found.rows:,} others ({found.metric}: {better};
in brackets the 95 % interval over people).

| shown | `{m.model}` | `{found.plain}` |
|---|---|---|
{table}
{sure}"""


def _known(m: Manifest) -> str:
    return f" and features ({', '.join(m.user_features.names)})" if m.user_features else ""


def _origin(m: Manifest) -> str:
    """Where the numbers come from."""
    d, w = m.data, m.domain
    scale = "yes or no" if w.implicit else f"ratings from {min(w.levels):g} to {max(w.levels):g}"
    if not d.rows:
        people = f"the {d.users:,} users of their training" if d.users else "nobody: a plain ridge"
        return f"""- **Trained on** nothing here: factors of items were brought ({scale});
  their SHA-256 is `{d.sha256}`.
- **How** a newcomer's vector is solved for, with a prior fitted to {people}"""
    wraps = f" round `{m.backbone}` {m.backbone_options}" if m.backbone else ""
    who = "users" if d.chosen == "threshold" else f"users (`key_users={d.chosen}`) among those"
    return f"""- **Trained on** {d.rows:,} interactions ({scale}) of {d.users:,} users;
  SHA-256 of the table `{d.sha256}`. The {d.key_users:,} {who} with at least {d.key_threshold}
  interactions are the key users; only their rows were trained on.
- **How** `{m.model}`{wraps}, preset `{m.preset}`, seed {m.seed}"""
