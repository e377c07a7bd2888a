"""Runs a build or a training under watch: so much at once as memory allows, and never longer than allowed."""
