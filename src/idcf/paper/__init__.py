"""Wu et al., "Towards Open-World Recommendation" (ICML 2021), reproduced.

This package holds the systems that the paper compares IDCF with, the settings of the published
code, the paper's tables and figures, and the pages that show them beside our own results. Only the
command line imports it: its models and presets join the library through entry points.
"""

from __future__ import annotations

from pathlib import Path

PRESETS_FOLDER = Path(__file__).with_name("presets")
