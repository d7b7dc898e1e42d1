"""A trained model in use: embeddings, lists, intervals, explanations, saving and loading."""
