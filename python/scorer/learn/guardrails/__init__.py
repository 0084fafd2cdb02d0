"""Guardrails: which actions a payment may use and why not, caps on share and cost, limits of law and schemes."""
