"""Will it fit: the memory that a language model takes, from its shape, against what this card really has."""
