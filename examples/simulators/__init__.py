"""Simulators: card transactions with fraud, and payments to authorise (docs/simulators.md)."""
