"""The fixtures of `serve_world`, for every test here."""

from serve_world import address, client, folder

__all__ = ["address", "client", "folder"]
