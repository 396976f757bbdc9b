"""Tokens of indexed files, as Megatron-LM writes them, and the module that reads them.

Touches: files of tokens, their index.
Never: a tokenizer.
"""
