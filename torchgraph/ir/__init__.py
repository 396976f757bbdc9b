"""What a program is: nodes, values, memory, what each stage allows, and the one way to edit it.

Touches: fx graphs, fake tensors.
Never: a live tensor of the user's.
"""
