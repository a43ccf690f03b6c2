"""Planning without torch: bytes, and later fit, cost and advice."""

from kvik.plan.bytes import KVBytes, kv_bytes, pool_capacity

__all__ = ["KVBytes", "kv_bytes", "pool_capacity"]
