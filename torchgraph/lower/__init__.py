"""Program → Executable: straight Python over ATen ops, which write in place where they can."""
