"""Models that score items for users, and the registry that names them."""
