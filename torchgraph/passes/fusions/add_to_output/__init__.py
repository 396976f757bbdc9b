"""An addition to a matrix product, taken into the product."""
