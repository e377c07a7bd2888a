"""The daemon: ``daemon`` builds it, ``loop`` ticks and says how things stand, ``process`` is the service."""
