"""Kernels as the compiler sees them: how each binds to given shapes. Their code is in `compiler.llvm.kernels`."""
