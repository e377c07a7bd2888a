"""The service: installed from wherever the program was had, upgraded, gone back from, removed."""
