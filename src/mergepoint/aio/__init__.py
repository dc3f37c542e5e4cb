"""Lazy, bounded, concurrent streams, built on asyncio and the standard library only."""
