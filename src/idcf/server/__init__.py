"""HTTP server of a saved model: routes, request batching, JSON schemas, metrics and a web page.

`run` starts the process, `app` builds the application, `batcher` groups requests, `service` answers
them with one model, `schemas` defines the JSON bodies.
"""
