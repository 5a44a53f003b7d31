"""What is kept on disk: kernels, engines, figures of the machine, and who may be trusted to have written it."""
