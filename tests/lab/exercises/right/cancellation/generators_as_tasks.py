import collections


class Server:
    """Each request is a generator, as a coroutine of an async server would be: `finally` frees what it holds."""

    def __init__(self, pool, slots):
        self.pool, self.slots = pool, slots
        self.queue = collections.OrderedDict()
        self.tasks = {}
        self.leaving = set()
        self.computing = False

    def submit(self, name, prompt_blocks, answer_tokens):
        self.queue[name] = (prompt_blocks, answer_tokens)

    def work(self, prompt_blocks, answer_tokens):
        blocks = self.pool.take(prompt_blocks + 1)
        try:
            yield
            for _ in range(prompt_blocks):
                yield False
            for left in reversed(range(answer_tokens)):
                if left:
                    yield True
        finally:
            self.pool.give_back(blocks)

    def begin(self):
        for name, (prompt_blocks, answer_tokens) in list(self.queue.items()):
            if len(self.tasks) == self.slots or prompt_blocks >= self.pool.free:
                break
            del self.queue[name]
            self.tasks[name] = self.work(prompt_blocks, answer_tokens)
            next(self.tasks[name])
        self.computing = True
        return self.tasks.keys()

    def end(self):
        self.computing = False
        for name in self.leaving:
            self.tasks.pop(name).close()
        self.leaving.clear()
        got = []
        for name, task in tuple(self.tasks.items()):
            if next(task, None) is None:
                del self.tasks[name]
                got.append(name)
            elif task.gi_frame.f_locals.get("left") is not None:
                got.append(name)
        return tuple(got)

    def cancel(self, name):
        if self.queue.pop(name, None):
            return True
        if name not in self.tasks or name in self.leaving:
            return False
        if self.computing:
            self.leaving.add(name)
        else:
            self.tasks.pop(name).close()
        return True
