"""The model card: what a user of a saved model should know, as a Markdown page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idcf.inference.manifest import Manifest


def render_model_card(manifest: Manifest) -> str:
    """Return the model card of a manifest, in Markdown."""
    options = ", ".join(f"{k}={v}" for k, v in manifest.options.items()) or "none"
    versions = ", ".join(f"{k} {v}" for k, v in manifest.versions.items())
    features, encoder = "", manifest.user_encoder
    if encoder:
        features = f" and features ({', '.join(encoder.feature_names)})"
    accuracy = "The accuracy for new users is given below."
    if not manifest.new_user_curve:
        accuracy = (
            "Accuracy was not measured in\n  training: train with `card_metrics=True`, or run "
            "`idcf evaluate` on your data."
        )
    return f"""# {manifest.fitted_model}

Recommends items to new users from their interactions{features}.

{_training_section(manifest)}; options: {options}.
- **Contents** {manifest.user_data_text}
- **Limits** Items without interactions in training are unknown and cannot be recommended. A user
  without a history gets popular items. {accuracy}
- **Catalogue** {manifest.domain.n_items:,} items.
- **Versions** {versions}
{_curve_section(manifest)}"""


def _curve_section(manifest: Manifest) -> str:
    """Return the table of the accuracy for new users by history length, or an empty text."""
    curve = manifest.new_user_curve
    if not curve:
        return ""
    better = "less is better" if curve.metric == "rmse" else "more is better"
    table = "\n".join(
        f"| {p.history_length} | {p.value:.3f} [{p.low:.3f}, {p.high:.3f}] | {p.baseline:.3f} |"
        for p in curve.points
    )
    coverage = ""
    if curve.cover90 is not None:
        coverage = f"\n{curve.cover90:.1%} of the ratings were in the 90 % intervals.\n"
    return f"""
## Accuracy for new users

A second model was trained without {curve.n_users:,} of the key users. They were then new users: the
model got some of their interactions and predicted {curve.n_rows:,} others
({curve.metric}: {better}; in brackets the 95 % interval over users).

| history length | `{manifest.fitted_model}` | `{curve.baseline}` |
|---|---|---|
{table}
{coverage}"""


def _training_section(manifest: Manifest) -> str:
    """Return the description of the training data and of the model."""
    data, domain = manifest.training_data, manifest.domain
    feedback = "implicit feedback"
    if not domain.implicit:
        feedback = f"ratings from {min(domain.levels):g} to {max(domain.levels):g}"
    if not data.n_rows:
        prior = "a ridge penalty"
        if data.n_users:
            prior = f"a prior fitted to the {data.n_users:,} users of that training"
        return f"""- **Trained on** other software: the item factors were given ({feedback});
  their SHA-256 is `{data.sha256}`.
- **Method** the vector of a new user is solved for, with {prior}"""
    backbone = ""
    if manifest.backbone:
        backbone = f" around `{manifest.backbone}` {manifest.backbone_options}"
    key_users = "users"
    if data.key_user_rule != "threshold":
        key_users = f"users (`key_users={data.key_user_rule}`) among those"
    return f"""- **Trained on** {data.n_rows:,} interactions ({feedback}) of {data.n_users:,} users;
  SHA-256 of the table `{data.sha256}`. The {data.n_key_users:,} {key_users} with at least
  {data.key_threshold} interactions are the key users; the models were fitted to them alone.
{_details_section(manifest)}- **Method** `{manifest.fitted_model}`{backbone}, preset \
`{manifest.preset}`, seed {manifest.seed}"""


def _details_section(manifest: Manifest) -> str:
    """Return what the solvers chose in training, one line per model; an empty text without any."""
    lines = []
    for name, details in manifest.details.items():
        chosen = ", ".join(f"{key} {value}" for key, value in details.items())
        lines.append(f"- **Chosen in training** (`{name}`) {chosen}.\n")
    return "".join(lines)
