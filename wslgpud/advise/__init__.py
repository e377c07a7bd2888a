"""Advice: the doctor, .wslconfig, guarded builds, and whether a model fits."""
