"""The dashboards as code."""
