"""A tiny model whose answers are known: for a server to serve, and for Hugging Face to say what it should have said."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXT = Path(__file__).parent.parent / "texts" / "held.txt"
VOCABULARY = 512
CONTEXT = 2_048
CLOSE = 2e-3
"""Two logits nearer than this are a tie: which wins depends on the order of a sum."""


def write_checkpoint(folder: Path) -> Path:
    """Write a Llama of random weights (4 layers, hidden 64, fp32, 1.5 MB), with 512 tokens. Returns the folder.

    Its weights are so large that another token anywhere in a prompt changes the answer. It says printable text and
    never its end token: what becomes of bytes that are no characters differs between right servers.
    Its heads have 64 dimensions, since attention kernels are compiled for a few sizes only: vLLM's begin at 32,
    FlashInfer's at 64.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()  # no bars of its own among ours
    tokenizer = _tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[_unspoken(tokenizer)] = 0  # their logits are 0, and another's always higher
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    """A byte-level BPE, trained on a page of text that comes along."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train([str(TEXT)], vocab_size=VOCABULARY, min_frequency=1, special_tokens=["<|end|>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    return tokenizer


def _unspoken(tokenizer: Any) -> list[int]:
    """Tokens that aren't printable text by themselves."""
    texts = {token_id: tokenizer.decode([token_id], skip_special_tokens=True) for token_id in range(VOCABULARY)}
    return [token_id for token_id, text in texts.items() if not text or "\ufffd" in text or not text.isprintable()]


class Reference:
    """Hugging Face on a checkpoint, on the CPU in float32.

    Args:
        folder: with config.json, safetensors and tokenizer.json.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """A chat as its template has it, up to where the answer begins."""
        return self.encode(self.tokenizer.apply_chat_template([*messages], tokenize=False, add_generation_prompt=True))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def answer(
        self, prompt: Sequence[int], num_tokens: int, *, frequency_penalty: float = 0.0, presence_penalty: float = 0.0
    ) -> tuple[list[int], list[float]]:
        """The greedy answer, with penalties as OpenAI defines them (they count the answer's tokens).

        Returns:
            Token ids, and by how much each one's logit was above the second best's.
        """
        import torch

        tokens, gaps, pending, cache = [*prompt], [], [*prompt], None
        with torch.inference_mode():
            for _ in range(num_tokens):
                step = self.model(torch.tensor([pending]), past_key_values=cache, use_cache=True)
                logits, cache = step.logits[0, -1], step.past_key_values
                for token, count in Counter(tokens[len(prompt) :]).items():
                    logits[token] -= presence_penalty + frequency_penalty * count
                best = logits.topk(2)
                gaps.append(float(best.values[0] - best.values[1]))
                pending = [int(best.indices[0])]
                tokens += pending
        return tokens[len(prompt) :], gaps

    def logprobs(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """The log probability of each token of an answer."""
        import torch

        with torch.inference_mode():
            rows = self.model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return [float(row[token]) for row, token in zip(rows, answer)]
