"""Looking into a Graph: what it did, and whether it is right."""
