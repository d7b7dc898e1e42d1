"""From files and tables to interactions, splits and batches.

Ids are translated here: the other packages see rows 0..n-1 only.
"""
