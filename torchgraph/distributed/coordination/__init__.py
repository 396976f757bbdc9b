"""How ranks agree before they act: who is there, what each is about to do, and whether it may.

Touches: the store of the default process group, by connections of its own; a watching thread.
Never: a collective of the user's groups, a program.
"""
