"""Alerts: from a transition to a message on a channel."""
