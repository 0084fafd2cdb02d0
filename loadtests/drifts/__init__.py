"""Streams of hourly counts with planted changes, on which drift detection is measured."""
