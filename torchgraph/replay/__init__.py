"""Executable → Replay: run the same program again and again over the user's live tensors."""
