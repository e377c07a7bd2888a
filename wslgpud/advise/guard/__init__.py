"""Runs a build or a training under watch: as many jobs as memory allows, for no longer than allowed."""
