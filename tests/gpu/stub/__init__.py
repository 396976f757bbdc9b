"""A CUDA runtime without a GPU, for `tests.gpu.walk`: sources in C++, and how they are built."""
