"""Does a variant fit a plan, with the bytes of every part."""
