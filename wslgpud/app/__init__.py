"""The daemon: ``daemon`` builds it and repeats its ``tick``, which answers ``status``; ``process`` is the service."""
