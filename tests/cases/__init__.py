"""Inputs from public bug reports, and what the product says of each."""
