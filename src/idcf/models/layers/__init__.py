"""Layers that several models share. A layer knows tensors and histories, no model and no data."""
