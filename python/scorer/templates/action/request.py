"""Choose the action of one payment: python request.py [ADDRESS]."""

from __future__ import annotations

import sys
import uuid

import scorer

PAYMENT: dict[str, float | str | bool] = {"amount": 129.9, "issuer": "bank-b", "is_retry": False}

if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7700"
    with scorer.Client(address, timeout=5.0) as client:
        decision = f"payment-{uuid.uuid4()}"
        answer = client.select_action("action.@NAME@", PAYMENT, request_id=decision)
        client.report_outcome("action.@NAME@", decision, "authorised", 1.0)
        sys.stdout.write(f"{answer.action} with propensity {answer.propensity:.4f}\n")
