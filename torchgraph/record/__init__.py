"""What a real step did: it runs as eager runs it, and is written down and compared.

Touches: everything of the user's, as eager would; what is taken back is as before.
Never: fake tensors in the user's code, a program.
"""
