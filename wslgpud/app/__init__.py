"""The daemon: ``daemon`` builds it, ``loop`` ticks, ``answers`` says how things stand, ``process`` is the service."""
