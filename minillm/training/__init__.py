"""How a draft head is made: talks that the model samples itself, its hidden states over them, and the training."""
