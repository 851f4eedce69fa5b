"""The native core: C kernels, compiled once on the machine that runs them, called through ctypes."""
