"""The one cache: token-granular slots, shared prefixes, and the tensors behind them."""

from eyas.cache.kv import KVStore
from eyas.cache.manager import CacheManager, CacheStats, SlotsExhausted

__all__ = ["CacheManager", "CacheStats", "KVStore", "SlotsExhausted"]
