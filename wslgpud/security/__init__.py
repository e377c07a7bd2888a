"""Boundaries to whoever else uses the machine or the network: what is read, run, fetched and shown."""
