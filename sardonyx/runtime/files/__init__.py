"""How files are opened and made; kernels, engines and figures of the machine on disk, and who may be trusted to have
written them."""
