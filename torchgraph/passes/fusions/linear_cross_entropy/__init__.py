"""The last product and its softmax cross-entropy, in chunks of rows: one op for all of it."""
