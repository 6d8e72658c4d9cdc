"""From a text to its KV blocks: what the engine will look for in its prefix cache."""

from collections.abc import Sequence
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.workloads import Arrival, Workload
from minillm.core.block_pool import ROOT, block_hashes
from minillm.core.brief import brief


@dataclass(frozen=True)
class Block:
    """A full block of tokens."""

    text: str
    name: bytes
    """Its hash: of these tokens and of all before them."""


@dataclass(frozen=True)
class Chain:
    """One prompt as blocks."""

    blocks: tuple[Block, ...]
    tail: str
    """What is left over at the end and fills no block: it cannot be found again."""
    num_tokens: int

    __repr__ = brief

    def found_after(self, earlier: "Chain") -> int:
        """Blocks of this prompt that are there when `earlier` has been computed."""
        known = {block.name for block in earlier.blocks}
        found = 0
        for block in self.blocks:
            if block.name not in known:
                break
            found += 1
        return found


def token_ids(lab: Lab, text: str) -> list[int]:
    return lab.tokenizer(text)["input_ids"]


def count_tokens(lab: Lab, text: str) -> int:
    return len(token_ids(lab, text))


def chain_of(lab: Lab, text: str, block_size: int) -> Chain:
    """The chain of a prompt, in blocks of `block_size` tokens."""
    ids = token_ids(lab, text)
    full = len(ids) // block_size * block_size
    pieces = [ids[i : i + block_size] for i in range(0, full, block_size)]
    texts = [lab.tokenizer.decode(piece) for piece in pieces]
    names = block_hashes(ROOT, ids, block_size)
    return Chain(tuple(map(Block, texts, names)), lab.tokenizer.decode(ids[full:]), len(ids))


def names_of(ids: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """The hashes of the full blocks of these tokens."""
    return tuple(block_hashes(ROOT, ids, block_size))


def block_size_of(lab: Lab) -> int:
    """Tokens per block on this machine: the attention backend's choice. A request of one token tells."""
    return lab.run(Workload("one token", "", (Arrival(0.0, "Hello", 1),))).snapshot.block_size
