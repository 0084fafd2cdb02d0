"""The overlay between two generations: logit offsets per segment and factor level (docs/overlay.md)."""
