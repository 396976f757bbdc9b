"""Attention that is spelled out, as one op of ATen."""
