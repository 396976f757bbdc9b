"""Process state that a step reads and side effects outside of tensors: settings, files, logs.

Touches: what can be asked at any time; functions of Python's library, patched while a step runs.
Never: a change of what is asked, a step that goes by an old answer without a word.
"""
