"""Growth on paper: step time and memory per rank of programs on more devices than are here."""
