"""The device to compute on, from the name that a user gives."""

from __future__ import annotations

import torch

from idcf.errors import ConfigError

DEVICE_NAMES = ("auto", "cpu", "cuda")


def resolve_device(name: str) -> torch.device:
    """Return the device of a name.

    Parameters
    ----------
    name
        "cpu", "cuda", or "auto": a GPU if one is visible, else the CPU.

    Returns
    -------
    torch.device
        The CPU or the current GPU.

    Raises
    ------
    ConfigError
        If the name is unknown, or if it is "cuda" and no GPU is visible.
    """
    if name not in DEVICE_NAMES:
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ConfigError("device 'cuda' was given, but no GPU is visible; use 'auto' or 'cpu'")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")
