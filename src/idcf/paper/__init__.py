"""Wu et al., "Towards Open-World Recommendation" (ICML 2021), reproduced.

The rival systems of the paper, the settings of its public code, its tables and figures, and pages
that show them beside our results. Models and presets join the library through entry points.
"""

from __future__ import annotations

from pathlib import Path

PRESETS_FOLDER = Path(__file__).with_name("presets")
