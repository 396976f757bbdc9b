"""Which op of which step went bad first: steps are run again, and taken back.

Touches: the user's state, which is put back; a script and its inputs on the disk.
Never: a change that outlives the look.
"""
