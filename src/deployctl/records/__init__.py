"""The record of a run: schema, files, comparison."""
