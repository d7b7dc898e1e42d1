"""Counters that processes share."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["resource"] = None  # importing it fails, as on Windows
from idcf.server.connections import ConnectionLimits
from idcf.server.counters import ServerMetrics
import idcf.server.run
metrics = ServerMetrics()
metrics.publish_usage()
assert metrics.cpu_seconds > 0
assert ConnectionLimits().within_open_files() == ConnectionLimits()
"""


def test_the_server_can_be_imported_where_there_is_no_module_resource() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
