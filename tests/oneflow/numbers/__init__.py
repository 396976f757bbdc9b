"""Numbers that OneFlow 0.9 gave, and the scripts that asked it for them."""
