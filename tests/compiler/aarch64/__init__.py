"""Kernels for AArch64, executed by an emulator on whatever machine the tests run on."""
