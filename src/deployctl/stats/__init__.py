"""Quantiles, intervals under dependence, sequential tests. Pure."""
