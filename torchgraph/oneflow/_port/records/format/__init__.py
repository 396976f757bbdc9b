"""OFRecord files: what lies in them, byte by byte.

Touches: files, protobuf.
Never: tensors.
"""
