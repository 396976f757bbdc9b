"""Program → Executable: the functional program becomes straight Python over ATen ops that write in place."""
