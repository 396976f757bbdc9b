"""record: writing down a step that really runs, and judging whether it is the same each time."""
