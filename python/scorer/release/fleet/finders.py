"""The finder of a group of `[[discovery]]`."""

from __future__ import annotations

from scorer.release.discovery_settings import DiscoverySettings
from scorer.release.fleet.discovery import Finder
from scorer.release.fleet.dns import DnsName
from scorer.release.fleet.slices import EndpointSlices


def finder_of(settings: DiscoverySettings) -> Finder:
    """Return what finds the servers of a group."""
    return DnsName(settings) if settings.dns is not None else EndpointSlices(settings)
