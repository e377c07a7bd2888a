"""Dashboards for Grafana, written as code; ``python -m grafana.source`` writes their JSON."""
