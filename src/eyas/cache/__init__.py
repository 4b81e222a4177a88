"""The key/value cache: slots of one token, shared prefixes, and the tensors that hold the values."""

from eyas.cache.blocks import BlockLog
from eyas.cache.kv import KVStore
from eyas.cache.manager import CacheManager, CacheStats, SlotsExhausted

__all__ = ["BlockLog", "CacheManager", "CacheStats", "KVStore", "SlotsExhausted"]
