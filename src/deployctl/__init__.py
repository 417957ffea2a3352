"""A plan and a model go in; a certified number of concurrent users comes out."""

__version__ = "0.1.0"
