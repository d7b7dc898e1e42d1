"""Fixtures of `serve_world` for the server tests."""

from serve_world import address, client, folder, short_cuts

__all__ = ["address", "client", "folder", "short_cuts"]
