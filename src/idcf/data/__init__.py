"""From raw files to tables of interactions, splits and batches. Ids stop at this border."""
