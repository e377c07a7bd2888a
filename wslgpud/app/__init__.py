"""The daemon: ``daemon`` builds it, ``loop`` ticks and answers ``status``, ``process`` is the service process."""
