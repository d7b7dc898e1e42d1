"""`idcf push`: upload a saved model to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

from idcf.cli import options as o
from idcf.errors import require_extra


def push(
    model_folder: o.ModelFolder,
    repository: Annotated[
        str, o.argument("REPOSITORY", "Name on the Hub, such as ann/films; created if missing.")
    ],
    private: Annotated[
        bool | None,
        o.switch("--private/--public", "Whether a new repository is private. Default: the Hub's."),
    ] = None,
    revision: Annotated[
        str | None, o.option("BRANCH", "Branch to write to. Default: main.")
    ] = None,
    license: Annotated[
        str | None, o.option("NAME", "License on the card, such as mit; none by default.")
    ] = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """Upload a saved model to the Hugging Face Hub, with its card.

    Log in with `hf auth login`, or set HF_TOKEN. `idcf.hub.from_pretrained` loads it.
    """
    require_extra("hub", "huggingface_hub")
    from idcf.hub import push_to_hub
    from idcf.recommender import Recommender

    url = push_to_hub(
        Recommender.load(model_folder),
        repository,
        license=license,
        private=private,
        revision=revision,
    )
    o.print_result({"address": url}, f"{model_folder} is at {url}", as_json)
