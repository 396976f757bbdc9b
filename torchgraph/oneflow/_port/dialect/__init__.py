"""Methods of tensors and modules by who calls them: code for OneFlow gets OneFlow's meaning.

Touches: members of three classes of torch; frames, to read them.
Never: what torch's own code, or a module without OneFlow, gets of a member.
"""
