"""Fixtures of `serve_world` for the server tests."""

from serve_world import address, client, folder

__all__ = ["address", "client", "folder"]
