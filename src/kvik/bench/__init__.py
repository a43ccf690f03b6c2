"""Benchmarks: what paging saves against reserving, on a trace of requests."""
