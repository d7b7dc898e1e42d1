"""HTTP server of a saved model: routes, request batching, JSON schemas, metrics and a web page.

`run` starts the process or, with `workers`, several; `app` builds the application, `protocol`
answers the busiest route without it, `batcher` groups requests, `service` answers them with one
model, `schemas` defines the JSON bodies. `mcp` answers agents: `mcp_tools` are its tools, and
`mcp_route` is its route on this server.
"""
