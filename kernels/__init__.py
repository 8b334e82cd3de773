"""Operators: for each its formula and plain-torch reference; Triton and C++ kernels join them later.

Imports nothing of ours, and this file imports neither torch nor triton: transformers probes for a third-party
package of the same name and must find only a version here.
"""

__version__ = "0.1.0"
