"""Benchmarks: each runs us and what we are compared with in turn, in one run, and prints ratios."""
