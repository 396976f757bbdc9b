"""What a program looks like to people: text, tree, differences."""
