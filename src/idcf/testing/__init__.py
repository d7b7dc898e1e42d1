"""Shipped with the library: worlds with a known answer, and the checks every model must pass.

To see whether a row added to `idcf.models.MODELS` keeps the contract:

    for check in idcf.testing.checks("mine"):
        check()
"""

from __future__ import annotations

from idcf.testing.battery import checks
from idcf.testing.worlds import World, fitted, learn, world

__all__ = ["World", "checks", "fitted", "learn", "world"]
