"""Training by passes over the shards of a table that need not fit into memory.

`fit` trains the models; `passes` says what a pass reads and `training` runs it. The other modules
hold the solvers: what they keep between passes has the size of the catalogue, or of a sample.
"""
