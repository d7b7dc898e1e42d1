"""Layers that only the rival systems use."""
