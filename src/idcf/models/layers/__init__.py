"""Parts that more than one model uses. A part knows tensors and histories, no model and no data."""
