"""The kernel language and its rendering as LLVM IR, for every target that LLVM generates code for."""
