"""Sampling: one tick from the sources to a snapshot, an observation for the risk engine, and its assessment."""
