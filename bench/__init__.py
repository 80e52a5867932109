"""Benchmarks: wanc and its peers side by side in one run. Shows performance, asserts nothing."""
