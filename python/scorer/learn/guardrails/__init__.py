"""Guardrails: who may use which action and why not, caps on share and cost, limits of law and schemes."""
