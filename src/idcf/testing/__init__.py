"""Shipped with the library: worlds with a known answer, and the checks every model must pass.

To see whether a model added to the registry keeps the contract:

    for check in idcf.testing.model_checks("mine"):
        check()
"""

from __future__ import annotations

from idcf.testing.checks import model_checks
from idcf.testing.worlds import World, fitted, learn, world

__all__ = ["World", "fitted", "learn", "model_checks", "world"]
