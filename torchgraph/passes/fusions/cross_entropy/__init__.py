"""Softmax cross-entropy: one op forward, one backward."""
