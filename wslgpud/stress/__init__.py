"""The nightly stress run of a GPU's memory; see README.md beside this file."""
