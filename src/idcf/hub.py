"""Models of idcf on the Hugging Face Hub: the folder that `save` writes, with a card.

A repository holds the four files of an artifact, which is data and no code, and README.md: the
model card with metadata for the Hub. Checksums are checked when it is loaded. The environment
variable HF_ENDPOINT names another Hub than the public one. Needs the extra `hub`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from idcf.errors import ArtifactError, ConfigError, require_extra
from idcf.inference.model_card import render_model_card
from idcf.recommender import Recommender

__all__ = ["from_pretrained", "push_to_hub"]

_FILE_NAMES = ("config.json", "weights.safetensors", "items.parquet", "card.md")
_TAGS = ("recommender-system", "collaborative-filtering", "cold-start")
_REFUSED = (401, 403)  # statuses of answers to a client without the right to write
_MAX_REASON = 300  # characters of an error of the Hub's client


def push_to_hub(
    recommender: Recommender,
    repo_id: str,
    *,
    license: str | None = None,
    tags: Iterable[str] = (),
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a model of idcf",
    token: str | None = None,
) -> str:
    """Upload a fitted recommender to a repository of the Hub, and return its address.

    Parameters
    ----------
    repo_id
        Name of the repository, such as "ann/films"; it is created if there is none.
    license, tags
        Of the card: an identifier of the Hub such as "mit", and tags beside those of idcf.
    private
        Whether a new repository is private. None: the default of the account.
    revision
        Branch to write to. None: main.
    commit_message
        Message of the commit.
    token
        None: that of `hf auth login`, or of the environment.

    Raises
    ------
    ConfigError
        If the recommender is not fitted, or the Hub refuses.
    """
    require_extra("hub", "huggingface_hub")
    from huggingface_hub import HfApi

    api = HfApi(token=token, library_name="idcf")
    with TemporaryDirectory() as temporary:
        folder = recommender.save(Path(temporary) / "model")
        card = _card_with_metadata(recommender, license, tags)
        (folder / "README.md").write_text(card, encoding="utf-8")
        try:
            url = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message,
            )
        except _hub_errors() as error:
            raise ConfigError(
                f"{repo_id} cannot be written: {_reason(error)}; {_push_advice(error)}"
            ) from None
    return str(url)


def from_pretrained(
    repo_id: str | Path,
    *,
    revision: str | None = None,
    device: str = "cpu",
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | None = None,
) -> Recommender:
    """Load a recommender from a repository of the Hub, or from a folder of this machine.

    Parameters
    ----------
    repo_id
        Name of the repository, such as "ann/films", or the path of a folder.
    revision
        Branch, tag or commit. Name a commit if the model must not change.
    cache_dir
        Where files are kept. None: the cache of the Hub's client.
    local_files_only
        Whether to use the cache alone, without a network.
    device, token
        Those of `Recommender.load` and of `push_to_hub`.

    Raises
    ------
    ArtifactError
        If there is no such model, or a file is damaged or was changed.
    """
    if Path(repo_id).expanduser().is_dir():
        return Recommender.load(repo_id, device=device)
    require_extra("hub", "huggingface_hub")
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            str(repo_id),
            revision=revision,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            token=token,
            allow_patterns=list(_FILE_NAMES),
            library_name="idcf",
        )
    except _hub_errors() as error:
        raise ArtifactError(
            f"no model {str(repo_id)!r} on the Hub, and no such folder: {_reason(error)}"
        ) from None
    return Recommender.load(folder, device=device)


def _card_with_metadata(recommender: Recommender, license: str | None, tags: Iterable[str]) -> str:
    """Return the model card with metadata of the Hub before it."""
    from huggingface_hub import ModelCardData

    manifest = recommender.manifest
    feedback = "implicit-feedback" if manifest.domain.implicit else "ratings"
    data: Any = ModelCardData(
        library_name="idcf",
        license=license,
        tags=list(dict.fromkeys((*_TAGS, feedback, manifest.fitted_model, *tags))),
    )
    return f"---\n{data.to_yaml()}\n---\n\n{render_model_card(manifest)}"


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the Hub's client: of answers, names and the connection."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    return HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, HTTPError, ConnectionError


def _push_advice(error: Exception) -> str:
    """Return what to do about an error of an upload."""
    from huggingface_hub.errors import HFValidationError

    if isinstance(error, HFValidationError):
        return "give a name such as ann/films"
    if getattr(getattr(error, "response", None), "status_code", None) in _REFUSED:
        return "log in with `hf auth login`, or give a token that may write there"
    return "check the connection and the arguments, and try again"


def _reason(error: Exception) -> str:
    """Return the first lines of an error as one line."""
    return " ".join(str(error).split())[:_MAX_REASON].rstrip(".")
