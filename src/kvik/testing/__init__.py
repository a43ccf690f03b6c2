"""Oracles and conformance suites, for kvik's own stages and for plug-ins.

from kvik.testing import check_codec, check_stack, models
check_codec(MyCodec())
check_stack("mycodec+sinks:4+window:20", models.grouped())
"""

from kvik.testing import models, stacks
from kvik.testing.codecs import check_codec
from kvik.testing.conformance import check_stack, oracle_logits
from kvik.testing.error import ConformanceError
from kvik.testing.oracle import OracleCache
from kvik.testing.requests import check_engine

__all__ = [
    "ConformanceError",
    "OracleCache",
    "check_codec",
    "check_engine",
    "check_stack",
    "models",
    "oracle_logits",
    "stacks",
]
