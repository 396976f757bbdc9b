"""The recorder: one eager step, its ops and Python-side guards taken down, and compared.

Touches: everything of the user's, as eager would; what is taken back is as before.
Never: fake tensors in the user's code, a program.
"""
