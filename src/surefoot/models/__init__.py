"""Models: their files, their weights, and the pass."""
