"""Compare systems under one protocol: splits, rows of results, tables, figures, reports."""
