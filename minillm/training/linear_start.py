"""Where a draft head begins: the best guess that a straight line can make.

Random weights spend most of a short training on learning what a least-squares fit says in seconds: how the next hidden
state follows from this one and the next token. So `fuse` begins as that fit, and the decoder layer behind it as one
that adds nothing; training then adds what is not linear, and what takes context.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from minillm.speculation.head import DraftHead
from minillm.training.conversations import Conversation

ENOUGH = 1024
RIDGE = 0.01
"""Of the mean square of the inputs, added to each: of two inputs that say the same, neither gets a huge weight."""


@torch.no_grad()
def start_linear(head: DraftHead, conversations: Sequence[Conversation]) -> None:
    """Set `fuse` to the ridge regression of h[t+1] on [norm(h[t]); norm(embedding of x[t+1])], over all of them."""
    size, eps, device = head.config.hidden_size, head.norm.eps, head.token_ids.device
    squares = torch.zeros(2 * size, 2 * size, device=device)
    products = torch.zeros(2 * size, size, device=device)
    for conversation in conversations[:ENOUGH]:
        hidden = conversation.hidden.to(device).float()
        embedded = F.embedding(conversation.token_ids[1:-1].to(device).long(), head.embed_tokens).float()
        inputs = torch.cat([F.rms_norm(x, (size,), eps=eps) for x in (hidden[:-1], embedded)], dim=-1)
        # The head's last norm multiplies by its weight.
        wanted = hidden[1:] / head.norm.weight
        squares += inputs.T @ inputs
        products += inputs.T @ wanted
    ridge = RIDGE * squares.diagonal().mean() * torch.eye(2 * size, device=device)
    head.fuse.weight.copy_(torch.linalg.solve(squares + ridge, products).T)
    for layer in head.layers:
        layer.attention.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
