"""What a step and a call consist of, and from what a recorded call left to a Program."""
