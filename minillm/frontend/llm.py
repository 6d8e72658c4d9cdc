"""LLM: the blocking front of the engine. Prompts in, finished outputs out."""

import threading
from collections.abc import Sequence
from typing import Any

from tqdm.auto import tqdm

from minillm.core.errors import RequestError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.frontend.prompts import Prompt, is_single_prompt
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig


class LLM:
    """One model, ready to generate.

        LLM(model="smollm2-135m").generate("The capital of France is", SamplingParams(temperature=0))

    Args:
        model: short name, local folder, GGUF file or Hub id.
        loaded: weights that are in memory already, to be shared.
        fields: any field of :class:`~minillm.policies.config.EngineConfig`.
    """

    def __init__(self, model: str = "smollm2-135m", *, loaded: LoadedModel | None = None, **fields: Any) -> None:
        self.engine = Engine(EngineConfig(model=model, **fields), loaded)
        self._turn = threading.Lock()
        """Held by the call that steps the engine: two would take each other's outputs, and never get their own."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many, which run together. Returns the outputs in the prompts' order.

        Calls from several threads take turns. For requests that come at any time and still run together: EngineThread.

        Args:
            prompts: each a string, a list of chat messages, or a list of token ids.
            params: one for all, or one for each prompt.
        Raises:
            RequestError: a prompt or its parameters cannot be served. Then none of them runs.
        """
        prompt_list: list[Any] = [prompts] if is_single_prompt(prompts) else list(prompts)
        if not isinstance(params, Sequence):
            params = [SamplingParams() if params is None else params] * len(prompt_list)
        if len(params) != len(prompt_list):
            raise ValueError(f"{len(prompt_list)} prompts but {len(params)} sampling params: give one, or one each")
        with self._turn:
            return self._generate(prompt_list, params, use_tqdm)

    def _generate(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], use_tqdm: bool
    ) -> list[RequestOutput]:
        ids: list[str] = []
        try:
            for prompt, one in zip(prompts, params):
                ids.append(self.engine.add_request(prompt, one, stream=False))
            return self._run(ids, use_tqdm)
        except RequestError:
            for request_id in ids:
                self.engine.abort(request_id)
            raise
        except BaseException:
            self.engine.start_over()  # Ctrl-C can cut a step off anywhere
            raise

    def _run(self, ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        wanted = set(ids)
        with tqdm(total=len(ids), desc="generating", unit="request", disable=not use_tqdm) as bar:
            num_tokens = 0
            while len(outputs) < len(ids):
                for output in self.engine.step():
                    if output.request_id not in wanted:  # added to the engine by another caller
                        continue
                    outputs[output.request_id] = output
                    for completion in output.completions:
                        completion.timeline.accept(self.engine.clock.now())
                        num_tokens += len(completion.token_ids)
                    bar.update()
                    bar.set_postfix_str(f"{num_tokens} tokens", refresh=False)
        return [outputs[request_id] for request_id in ids]
