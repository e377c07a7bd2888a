"""The service: installed from wherever the program comes from, upgraded, rolled back, removed."""
