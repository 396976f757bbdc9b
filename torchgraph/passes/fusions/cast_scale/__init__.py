"""A cast from half precision and its multiplication by a scale: one op."""
