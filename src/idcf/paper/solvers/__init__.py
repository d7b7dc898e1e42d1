"""Solvers that only the rival systems use."""
