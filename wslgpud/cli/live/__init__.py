"""The live view in the terminal: source of its samples, recent history, and rendering."""
