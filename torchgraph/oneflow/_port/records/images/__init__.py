"""Images: decode, crop, resize and normalise them, in OneFlow's arithmetic.

Touches: NumPy arrays, Pillow, tensors of pixels.
Never: files.
"""
