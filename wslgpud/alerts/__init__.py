"""Alerts: from a transition row to somebody's attention."""
