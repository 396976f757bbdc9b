"""What somebody may do to hurt a Graph, in error or on purpose, and what comes of it."""
