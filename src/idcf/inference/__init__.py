"""A frozen model at work: from a history to embeddings, lists, intervals and reasons."""
