"""Planning without torch: bytes, and later fit, cost and advice."""

from kvik.plan.bytes import KVBytes, kv_bytes, pool_capacity, step_peak

__all__ = ["KVBytes", "kv_bytes", "pool_capacity", "step_peak"]
