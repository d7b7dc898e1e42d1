"""Sphinx configuration. `make docs` builds the site offline, with warnings as errors."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import idcf

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # executed pages are small: threads only slow them
os.environ["PYTHONPATH"] = str(Path(__file__).parent / "_ext")  # where they find example_data
profile = Path(__file__).parent / "_build" / "ipython" / "profile_default"  # keeps kernels quiet
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
os.environ["IPYTHONDIR"] = str(profile.parent)
logging.getLogger("traitlets").setLevel(logging.WARNING)

project = "idcf"
author = "the idcf authors"
copyright = f"2026, {author}"
version = release = idcf.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
    "generated_reference",
    "schemas",
]
exclude_patterns = ["_build", "results/index.html"]
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext"}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_show_tb = True

default_role = "code"  # single backticks in docstrings
autosummary_generate = True
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"idcf {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
templates_path: list[str] = []
suppress_warnings = ["mystnb.unknown_mime_type"]
