"""What a Graph looks like to people: trees, operators, stages of a compilation.

Touches: programs and modules, to read them.
Never: a change of what it shows.
"""
