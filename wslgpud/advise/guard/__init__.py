"""Runs a build or a training under supervision: as many jobs as memory allows, within a time limit."""
