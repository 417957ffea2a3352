"""The nights: what is measured when, in which order, and what became of it."""
