"""Layer and RMS norms with the residual addition before them: one op each way."""
