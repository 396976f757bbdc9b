"""Step → Program: run `build` once over stand-ins, record it whole, make it functional."""
