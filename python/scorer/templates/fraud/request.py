"""Score one payment: python request.py [ADDRESS]."""

from __future__ import annotations

import sys

import scorer

PAYMENT: dict[str, float | str | bool] = {
    "amount": 129.9,
    "hour": 14,
    "payments_24h": 2,
    "is_new_device": True,
    "channel": "web",
}

if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7700"
    with scorer.Client(address, timeout=5.0) as client:
        answer = client.score("fraud.@NAME@", PAYMENT, reasons=2)
        reasons = ", ".join(reason.feature for reason in answer.reasons)
        sys.stdout.write(f"{answer.decision} {answer.score:.4f} because of {reasons}\n")
