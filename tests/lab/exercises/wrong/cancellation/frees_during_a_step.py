# feedback: while a step was under way
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Request:
    name: str
    prompt_blocks: int
    answer_tokens: int
    blocks: list = field(default_factory=list)
    steps: int = 0
    has_left: bool = False


class Server:
    def __init__(self, pool, seats):
        self.pool, self.seats = pool, seats
        self.waiting = deque()
        self.running = []
        self.in_step = False

    def submit(self, name, prompt_blocks, answer_tokens):
        self.waiting.append(Request(name, prompt_blocks, answer_tokens))

    def begin(self):
        while self.waiting and len(self.running) < self.seats:
            if self.waiting[0].prompt_blocks + 1 > self.pool.free:
                break
            request = self.waiting.popleft()
            request.blocks = self.pool.take(request.prompt_blocks + 1)
            self.running.append(request)
        self.in_step = True
        return [request.name for request in self.running]

    def end(self):
        tokens = []
        self.in_step = False
        for request in list(self.running):
            request.steps += 1
            decoded = request.steps - request.prompt_blocks
            if decoded > 0 and not request.has_left:
                tokens.append(request.name)
            if request.has_left or decoded == request.answer_tokens:
                self._let_go(request)
        return tokens

    def cancel(self, name):
        for request in self.waiting:
            if request.name == name:
                self.waiting.remove(request)
                return True
        for request in self.running:
            if request.name == name and not request.has_left:
                request.has_left = True
                self._let_go(request)
                return True
        return False

    def _let_go(self, request):
        """The one place where a request gives back what it holds."""
        self.running.remove(request)
        self.pool.give_back(request.blocks)
