"""The program that fills a GPU's memory, checks it, and frees it. Needs torch, and nothing else of ours.

It is passed to a foreign Python as a zip archive (``wslgpud.security.run_as``), hence the relative imports. The first
line of standard input is the job (see ``WorkerJob``); any further line, or the end of the input, means to free
everything and exit. Standard output carries one JSON object per line, see ``README.md`` beside this folder.
"""
