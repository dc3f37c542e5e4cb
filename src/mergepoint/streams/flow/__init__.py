"""Flow: lazy, bounded streams of anything, on asyncio and the standard library alone."""
