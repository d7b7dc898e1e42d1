"""Progress bars: text in a terminal, a widget in a notebook, nothing where the output is a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from tqdm import tqdm


def progress_bar(
    label: str | None,
    *,
    total: float | None = None,
    initial: int = 0,
    unit: str = "it",
    unit_scale: bool = False,
    steps: Iterable[Any] | None = None,
) -> tqdm[Any]:
    """Return a bar with a label, over some `steps` or to a total; without a label it is hidden."""
    shown: dict[str, Any] = {"disable": True}
    kind: type[tqdm[Any]] = tqdm
    if label and _is_notebook():
        shown = {"disable": False, "file": sys.stdout}
        if find_spec("ipywidgets"):
            from tqdm.notebook import tqdm as kind
    elif label:
        shown = {"disable": None}  # tqdm shows the bar if the output is a terminal
    return kind(
        steps, desc=label, total=total, initial=initial, unit=unit, unit_scale=unit_scale, **shown
    )


def _is_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return "IPKernelApp" in getattr(shell, "config", {})
