"""Wu et al., "Towards Open-World Recommendation" (ICML 2021), reproduced.

The rival systems, the published settings, the paper's tables and figures, and the pages that show
them beside our own results. Nothing but the command line imports this package: its models and
presets join the library through entry points.
"""

from __future__ import annotations

from pathlib import Path

PRESETS_FOLDER = Path(__file__).with_name("presets")
