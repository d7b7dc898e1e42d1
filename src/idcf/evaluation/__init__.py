"""Compare models on a dataset: split, train, measure, tabulate; and tune the options of one."""
