"""The last steps' inputs and random states, and the full state now and then.

Touches: copies of the user's state, arguments and results; plain attributes of modules.
Never: a step that runs, anything at all while ``config.keep_history`` is off.
"""
