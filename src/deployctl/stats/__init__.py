"""Statistics of dependent yes/no outcomes: pure functions on numpy arrays."""
