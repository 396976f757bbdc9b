"""Embedding tables: rows are added in place, and updated alone."""
