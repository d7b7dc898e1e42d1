"""The Model Context Protocol: the tools of `mcp_tools` over standard input and output, or HTTP.

Over HTTP every request is complete in itself, so that any worker can answer it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from msgspec import json as msgspec_json
from msgspec import to_builtins

from idcf import __version__
from idcf.errors import IdcfError, unknown_name_message
from idcf.server.mcp_tools import TOOLS, json_schema
from idcf.server.service import RecommendationService

if TYPE_CHECKING:
    from idcf.recommender import Recommender

T = TypeVar("T")
Answer = Callable[[Callable[[RecommendationService], T]], Awaitable[T]]
LOG = logging.getLogger("idcf.server")
_MAX_TRACE_CHARS = 4000
INSTRUCTIONS = """\
Recommends items to a user from the history that each call carries; nothing is kept between calls.
To interview a user: call describe_model for the rating scale, then next_question, ask for a rating
of the title it gives, add the answer to the history (or the item to exclude, if the user does not
know it) and repeat, three to ten times. Then call recommend, and explain for the reasons. Titles
that the user names are looked up with search_items."""


def make_server(answer: Answer[Any]) -> Server[Any]:
    """Return a server whose tools are functions of the served model, which `answer` calls."""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        """List the tools with their schemas."""
        hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=x.name,
                    description=x.description,
                    input_schema=json_schema(x.arguments_type),
                    output_schema=json_schema(x.result_type),
                    annotations=hints,
                )
                for x in TOOLS.values()
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool; an error of idcf becomes a result, so that the agent can correct itself."""
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, unknown_name_message("tool", params.name, TOOLS))
        try:
            arguments = tool.parse(params.arguments or {})
            result = await answer(lambda service: tool.function(service, arguments))
        except IdcfError as error:
            return types.CallToolResult(content=[_text(str(error))], is_error=True)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))[-_MAX_TRACE_CHARS:]
            LOG.error(json.dumps({"event": f"tool {tool.name} failed", "trace": trace}))
            raise MCPError(types.INTERNAL_ERROR, "internal error; see the server's log") from None
        text = msgspec_json.encode(result).decode()
        return types.CallToolResult(content=[_text(text)], structured_content=to_builtins(result))

    return Server(
        "idcf",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve_stdio(recommender: Recommender) -> None:
    """Answer one client over standard input and output, until it closes them."""
    service = RecommendationService(recommender)

    async def answer(function: Callable[[RecommendationService], Any]) -> Any:
        """Call a function in a thread, so that messages are read meanwhile."""
        return await asyncio.to_thread(function, service)

    async def serve() -> None:
        """Answer the messages of standard input."""
        server = make_server(answer)
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())

    asyncio.run(serve())


def _text(text: str) -> types.TextContent:
    """Return a text as the protocol has it."""
    return types.TextContent(type="text", text=text)
