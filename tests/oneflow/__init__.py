"""Scripts for OneFlow on torchgraph. Numbers that OneFlow 0.9 gave lie beside what made them."""
