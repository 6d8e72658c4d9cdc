"""How a draft head is made: conversations that the model samples itself, its hidden states, and the training."""
