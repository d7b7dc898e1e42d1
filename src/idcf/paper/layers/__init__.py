"""Layers that only the rival systems of the paper use."""
