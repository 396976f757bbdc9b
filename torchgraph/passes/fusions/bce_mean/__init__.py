"""The mean binary cross-entropy of logits: one op forward, one backward."""
