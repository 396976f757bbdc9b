"""A report as one page of HTML, and its plots as pictures.

Touches: programs, figures and names, to read them; the files at a path.
Never: a live tensor, the network, text of the user's as markup.
"""
