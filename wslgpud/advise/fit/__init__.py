"""``wslgpud fit``: the memory that a model needs, from its shape, compared with the card's real capacity."""
