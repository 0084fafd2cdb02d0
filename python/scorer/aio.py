"""The asyncio client under the name that mirrors `scorer.Client`: `scorer.aio.Client`."""

from scorer.client.asynchronous import AsyncClient as Client

__all__ = ["Client"]
