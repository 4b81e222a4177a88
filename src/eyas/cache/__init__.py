"""The key/value cache: slots of one token, shared prefixes, and the tensors that hold the values."""

from eyas.cache.kv import KVStore
from eyas.cache.manager import CacheManager, CacheStats, SlotsExhausted

__all__ = ["CacheManager", "CacheStats", "KVStore", "SlotsExhausted"]
