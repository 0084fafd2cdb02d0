"""scorer: decisions on payments while the shopper waits."""
