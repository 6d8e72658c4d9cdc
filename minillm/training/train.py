"""Training a draft head on recorded conversations: AdamW, warm-up and cosine, checkpoints to go on from."""

import io
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from minillm.core.errors import TrainingError
from minillm.core.params import SEED_STRIDE
from minillm.kernels.storage import write_whole
from minillm.speculation.head import DraftHead
from minillm.speculation.head_file import ANOTHER_OUT
from minillm.training.conversations import Conversation
from minillm.training.loss import Agreement, count_agreement, training_loss
from minillm.training.unrolled import ConversationBatch

WARM_UP = 0.03
"""Share of the steps in which the learning rate rises."""
FEW_HELD_OUT = 32
"""Conversations by which it is judged now and then."""
KEEP_WHOLE = 0.5
"""Share of conversations seen from their first token on. The others begin somewhere in the prompt, as after a hit in
the prefix cache, where the model computes no hidden states."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """What a training run depends on, besides its conversations."""

    passes: int = 8
    """Times that every conversation is seen."""
    draft_len: int = 2
    """Tokens of a draft that it is trained for; the first half of the steps trains the first one only."""
    conversations_per_step: int = 2
    """Few: on a CPU more steps are worth more than a smoother one"""
    learning_rate: float = 7e-4
    vocabulary: int = 6144
    """Most tokens that the head can name: the most frequent ones of the answers."""
    start_from: str | None = None
    """A head to go on from, as `load_head` takes it; None = the best linear guess."""
    weight_decay: float = 0.01
    seed: int = 0


class Training:
    """A head, the conversations it learns from, and how far it has got.

    Args:
        held_out: conversations to judge by; never trained on.
        checkpoint: where to keep the state, to go on from after an interruption; None = nowhere.
        origin: what tells the head apart whose weights it begins with; a run that is resumed wants the same one.
    Raises:
        TrainingError: there are no conversations, or the checkpoint is of another run, or damaged.
    """

    def __init__(
        self,
        head: DraftHead,
        conversations: list[Conversation],
        held_out: list[Conversation],
        settings: TrainingSettings,
        checkpoint: Path | None = None,
        origin: str | None = None,
    ) -> None:
        if not conversations or not held_out:
            raise TrainingError("there are no conversations to train on, or none to judge by: sample more of them")
        self.head, self.conversations, self.held_out = head, conversations, held_out
        self.settings, self.checkpoint, self.origin = settings, checkpoint, origin
        self.device = head.norm.weight.device
        self.steps_per_pass = math.ceil(len(conversations) / settings.conversations_per_step)
        self.num_steps = settings.passes * self.steps_per_pass
        self.parameters = [p for name, p in head.named_parameters() if not name.startswith("output.")]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(
            self.parameters, settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
        )
        self.step = 0
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)

    def run(self, *, save_every: int = 100, progress: bool = True, until: int | None = None) -> None:
        """Train to the end, or up to the step `until`."""
        with tqdm(total=self.num_steps, initial=self.step, desc="training", unit="step", disable=not progress) as bar:
            while self.step < min(self.num_steps, until or self.num_steps):
                loss = self._train(self._batch(self.step))
                self.step += 1
                bar.update()
                if self.step % save_every == 0:
                    self._save()
                    if progress:
                        emitted = self.judge(FEW_HELD_OUT).emitted_per_verify[-1]
                        text = f"step {self.step}: loss {loss:.3f}, held out: {emitted:.2f} tokens per step"
                        bar.write(text, file=sys.stderr)
        self._save()

    def judge(self, most: int | None = None) -> Agreement:
        """How the head does on the held-out conversations, or the first `most` of them."""
        agreement = Agreement([0] * max(self.settings.draft_len, 4))
        for conversation in self.held_out[:most]:
            batch = ConversationBatch.of([conversation.token_ids], [conversation.hidden], [0]).to(self.device)
            count_agreement(self.head, batch, torch.tensor([conversation.answer_start], device=self.device), agreement)
        return agreement

    def _train(self, batch: ConversationBatch) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * self._rate()
        draft_len = self.settings.draft_len if self.step >= self.num_steps / 2 else 1
        loss = training_loss(self.head, batch, draft_len)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def _rate(self) -> float:
        """The learning rate, relative to its peak: up in a line, down in a cosine."""
        done = (self.step + 1) / self.num_steps
        if done < WARM_UP:
            return done / WARM_UP
        return 0.5 + 0.5 * math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))

    def _batch(self, step: int) -> ConversationBatch:
        """A step's conversations. They depend on the settings and the step alone, so a resumed run sees the same."""
        number, place = divmod(step, self.steps_per_pass)
        shuffle = torch.Generator().manual_seed(self.settings.seed * SEED_STRIDE + number)
        order = torch.randperm(len(self.conversations), generator=shuffle)
        starts = torch.rand(2, len(self.conversations), generator=shuffle)
        size = self.settings.conversations_per_step
        token_ids, hidden, first = [], [], []
        for i in order[place * size :][:size].tolist():
            each = self.conversations[i]
            start = 0 if starts[0, i] < KEEP_WHOLE else int(starts[1, i] * (each.answer_start - 1))
            token_ids.append(each.token_ids[start:])
            hidden.append(each.hidden[start:])
            first.append(start)
        return ConversationBatch.of(token_ids, hidden, first).to(self.device)

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        state = {
            "step": self.step,
            "run": self.describe_run(),
            "head": [parameter.detach() for parameter in self.parameters],
            "optimizer": self.optimizer.state_dict(),
        }
        content = io.BytesIO()  # of a full disk torch.save says nothing that one could act on
        torch.save(state, content)
        write_whole(self.checkpoint, content.getbuffer(), ANOTHER_OUT)

    def _resume(self, checkpoint: Path) -> None:
        try:
            state = torch.load(checkpoint, map_location=self.device, weights_only=True)
        except Exception as error:  # what it says of damaged bytes depends on which byte it is
            raise TrainingError(
                f"{checkpoint} is damaged ({type(error).__name__}): delete it, and the training begins anew"
            ) from error
        if state["run"] != self.describe_run():
            raise TrainingError(
                f"{checkpoint} is of another run ({state['run']}, this is {self.describe_run()}): delete it, or choose "
                "another folder"
            )
        with torch.no_grad():
            for parameter, saved in zip(self.parameters, state["head"], strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def describe_run(self) -> dict[str, Any]:
        """What has to be the same for a run to go on."""
        return {
            **asdict(self.settings),
            "conversations": len(self.conversations),
            "tokens": self.head.output.weight.shape[0],
            "start_from": self.origin,
        }
