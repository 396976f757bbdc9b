"""The option verbs of GraphConfig, by subject."""
