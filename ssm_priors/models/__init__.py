"""Models: embedding -> residual backbone of mixers -> head, on (B, L, H) from end to end."""
