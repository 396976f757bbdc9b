"""One step by an executable over live tensors, its check, and the switch to Inductor's code.

Touches: the live state, by the program alone.
Never: a recording, the user's build.
"""
