class Server:
    def __init__(self, pool, slots):
        self.pool, self.slots = pool, slots
        self.queue, self.live, self.zombies = {}, {}, None

    def submit(self, name, prompt_blocks, answer_tokens):
        self.queue[name] = [prompt_blocks, answer_tokens]

    def begin(self):
        while self.queue and len(self.live) < self.slots:
            name = next(iter(self.queue))
            need = self.queue[name][0] + 1
            if need > self.pool.free:
                break
            self.live[name] = {"todo": self.queue.pop(name), "blocks": self.pool.take(need)}
        self.zombies = []
        return self.live.keys()

    def end(self):
        for blocks in self.zombies:
            self.pool.give_back(blocks)
        self.zombies = None
        served = []
        for name in list(self.live):
            todo = self.live[name]["todo"]
            if todo[0]:
                todo[0] -= 1
                continue
            todo[1] -= 1
            served.append(name)
            if not todo[1]:
                self.pool.give_back(self.live.pop(name)["blocks"])
        return tuple(served)

    def cancel(self, name):
        if name in self.queue:
            del self.queue[name]
            return 1
        if name in self.live:
            blocks = self.live.pop(name)["blocks"]
            if self.zombies is None:
                self.pool.give_back(blocks)
            else:
                self.zombies.append(blocks)
            return 1
        return 0
