"""`idcf mcp`: a saved model as tools of the Model Context Protocol, for agents."""

from __future__ import annotations

from idcf.cli import options as o
from idcf.errors import require_extra


def mcp(model_folder: o.ModelFolder, threads: o.Threads = 1) -> None:
    """Serve a model to an agent by the Model Context Protocol, over standard input and output.

    An agent starts this command and ends it. `idcf serve --mcp` serves the tools over HTTP.
    """
    require_extra("mcp", "mcp", "msgspec")
    o.limit_threads(threads)
    from idcf.recommender import Recommender
    from idcf.server.mcp import serve_stdio

    serve_stdio(Recommender.load(model_folder))
