"""NKI kernels, each beside its plain reference. Always imported as ``wanc.kernels``."""
