"""Checkpoints: what a run leaves, readable without running anybody's code."""
