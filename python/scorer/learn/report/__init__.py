"""The readable side of learning: one self-contained HTML page per verdict, and one over all generations."""
