"""Solvers: functions (config, table, context) -> model, for models not trained by gradient."""
