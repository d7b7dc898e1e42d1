"""Fixtures of `serve_world` and `page_browser` for the server tests."""

from page_browser import browser, page
from serve_world import address, client, folder, short_cuts

__all__ = ["address", "browser", "client", "folder", "page", "short_cuts"]
