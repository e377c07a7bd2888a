"""The live view in the terminal: where looks come from, what is kept of them, how it is drawn."""
