"""Training: the two phases of self-pretraining, bit for bit the same whether interrupted or not."""
