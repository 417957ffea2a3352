"""The capacity search: pure, given a probe."""
