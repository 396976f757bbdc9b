"""Parts of file formats besides the program: names, descriptions, a trial run against torch.

Touches: exported programs, to read and to run copies of them; files that are being made.
Never: a Graph, its states, the random generators; the file at the user's path.
"""
