"""The jobs: readable lists of steps that join the pure parts to the edges."""
