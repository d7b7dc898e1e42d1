"""Recommendations over HTTP: engine (no HTTP), schemas, app (routes), gate, and a page."""
