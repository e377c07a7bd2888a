"""The program that fills a GPU's memory, checks it, and gives it back. Needs torch, and nothing of ours.

It goes to a foreign Python as one file, a zip archive (``wslgpud.security.run_as``), hence the relative imports.
The first line of standard input is the job (see ``WorkerJob``); any further line, or the end of the input, tells it
to give everything back. Standard output carries one JSON object a line, see ``README.md`` beside this folder.
"""
