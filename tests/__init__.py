"""Tests mirror the tree. Every folder is a package, or `tests/kernels` would shadow `kernels`."""
