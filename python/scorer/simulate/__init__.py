"""Simulators: card transactions with fraud, and an authorisation environment. docs/simulators.md has the formulas."""
