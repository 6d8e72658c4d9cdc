"""Input validation: turns whatever a caller may send as a prompt into token ids, or says why not."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol, TypeGuard

from minillm.frontend.errors import EmptyPromptError, InvalidPromptError
from minillm.text_files import half_character

ChatMessage = dict[str, Any]


class TokenArray(Protocol):
    """A NumPy array of token ids. (A protocol, since token ids can be checked where there is no NumPy.)"""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def tolist(self) -> Any: ...


class CheckedTokens(list[int]):
    """Token ids that were checked before, and are taken as they are: by the server in a helper thread, so that the
    engine's thread needn't, or by what made them up."""


Prompt = str | Sequence[ChatMessage] | Sequence[int] | TokenArray
"""Plain text; chat messages ({"role": ..., "content": ...}), put through the model's chat template; token ids."""


NO_PROMPT = "a prompt is a string, a list of chat messages (dicts), or a list of token ids"


def is_single_prompt(prompts: Any) -> bool:
    """True for one prompt, False for a list of prompts. Raises InvalidPromptError: it is neither."""
    if isinstance(prompts, str):
        return True
    if not isinstance(prompts, Sequence) and not is_array(prompts):
        raise InvalidPromptError(f"{NO_PROMPT}, or a list of prompts; got a {type(prompts).__name__}")
    return bool(len(prompts)) and (isinstance(prompts[0], dict) or is_token_id(prompts[0]))


def is_token_id(value: Any) -> bool:
    """Whether a value is a whole number (NumPy's, too), and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_chat(prompt: Prompt) -> TypeGuard[Sequence[ChatMessage]]:
    """Whether these are chat messages."""
    return isinstance(prompt, Sequence) and bool(prompt) and all(isinstance(message, dict) for message in prompt)


def is_array(value: Any) -> TypeGuard[Any]:
    """Whether this is a NumPy array."""
    numpy = sys.modules.get("numpy")  # an array is there only if it was imported
    return numpy is not None and isinstance(value, numpy.ndarray)


def as_token_ids(values: Sequence[Any] | TokenArray) -> list[int] | None:
    """A list of plain ints; None if something else is among them."""
    if isinstance(values, CheckedTokens):
        return values
    if is_array(values):
        return values.tolist() if values.ndim == 1 and values.dtype.kind in "iu" else None
    if set(map(type, values)) <= {int}:  # nearly always; asking one by one is slow with a long prompt
        return list(values)
    return list(map(int, values)) if all(map(is_token_id, values)) else None


def encode_prompt(
    prompt: Prompt, tokenizer: Any, vocab_size: int | None, template_variables: Mapping[str, Any] = {}
) -> tuple[str | None, list[int]]:
    """The prompt's text (None if it came as ids) and its token ids.

    Args:
        template_variables: what the chat template is told besides the messages, such as tools.
    Raises:
        EmptyPromptError: no tokens.
        InvalidPromptError: the prompt is of no known kind, is no valid text, has an id outside the vocabulary, or is
            text where there is no tokenizer.
    """
    text = token_ids = None
    if isinstance(prompt, str):
        text, token_ids = prompt, _tokenize(tokenizer, prompt)
    elif is_chat(prompt):
        text = _apply_chat_template(require_tokenizer(tokenizer), prompt, template_variables)
        token_ids = _tokenize(tokenizer, text, add_special_tokens=False)
    elif not isinstance(prompt, (bytes, bytearray)) and hasattr(prompt, "__len__"):
        token_ids = as_token_ids(prompt)
    if token_ids is None:
        raise InvalidPromptError(NO_PROMPT)
    if not token_ids:
        raise EmptyPromptError("the prompt has no tokens: send at least one")
    if isinstance(token_ids, CheckedTokens):
        return text, token_ids
    if min(token_ids) < 0 or (vocab_size is not None and max(token_ids) >= vocab_size):
        wrong = next(t for t in token_ids if t < 0 or t >= (vocab_size or t + 1))
        ids = "0 and up" if vocab_size is None else f"0 to {vocab_size - 1}"
        raise InvalidPromptError(f"token id {wrong} is not in the vocabulary ({ids})")
    return text, token_ids


def require_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer. Raises InvalidPromptError: the model has none."""
    if tokenizer is None:
        raise InvalidPromptError("this model has no tokenizer (a dummy or a bare config): send token ids")
    return tokenizer


def _tokenize(tokenizer: Any, text: str, **options: Any) -> list[int]:
    try:
        return require_tokenizer(tokenizer)(text, **options)["input_ids"]
    except (TypeError, UnicodeError) as error:
        raise InvalidPromptError(f"the prompt is no Unicode text: {half_character(text) or error}") from error


def _apply_chat_template(tokenizer: Any, messages: Sequence[ChatMessage], variables: Mapping[str, Any]) -> str:
    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **variables)
    except Exception as error:  # a template is a program that came with the checkpoint: it can raise anything
        if not getattr(tokenizer, "chat_template", None):
            raise InvalidPromptError(
                "this model has no chat template: send the prompt as text, or choose the model's instruct version"
            ) from error
        if type(error).__name__ == "TemplateSyntaxError":  # jinja2's
            raise InvalidPromptError(
                f"the model's chat template is no template ({error}): fetch the model again, or send the prompt as text"
            ) from error
        raise InvalidPromptError(
            f"the model's chat template refused these messages: {error}. Each is a dict with a role and a content, "
            "texts both; which roles may follow which is up to the template"
        ) from error
