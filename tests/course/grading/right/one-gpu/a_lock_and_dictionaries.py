"""No task of its own: whoever finds the GPU free runs the next batch, for everybody."""

import asyncio


class Batcher:
    def __init__(self, gpu):
        self.gpu, self.lock = gpu, asyncio.Lock()
        self.waiting = {}  # key: item, oldest first
        self.futures = {}
        self.watchers = {}

    async def infer(self, item):
        if item.key not in self.futures:
            backlog = sum(self.cost(each) for each in self.waiting.values())
            if backlog + 0.35 + self.gpu.seconds(1, item.tokens) > self.gpu.patience:
                raise self.gpu.Refused
            self.waiting[item.key] = item
            self.futures[item.key] = asyncio.get_running_loop().create_future()
        future = self.futures[item.key]
        self.watchers[item.key] = self.watchers.get(item.key, 0) + 1
        driver = asyncio.ensure_future(self.drive(item.key))
        try:
            return await asyncio.shield(future)
        finally:
            self.watchers[item.key] -= 1
            if not self.watchers[item.key] and self.waiting.pop(item.key, None):
                self.futures.pop(item.key).cancel()
            del driver

    def cost(self, item):
        return self.gpu.seconds(100, item.tokens) / 100

    async def drive(self, key):
        await asyncio.sleep(0.005)
        async with self.lock:
            if key in self.waiting:
                await self.compute(self.take(self.waiting[key]))

    def take(self, first):
        alike = [item for item in self.waiting.values() if (item.tokens > 500) == (first.tokens > 500)]
        size = max((n for n in range(1, 101) if self.gpu.seconds(n, alike[0].tokens) < 0.3), default=1)
        return [self.waiting.pop(item.key) for item in alike[:size]]

    async def compute(self, items):
        todo = [(items, 0)]
        while todo:
            batch, failures = todo.pop()
            try:
                outputs = await self.gpu.run(batch)
            except self.gpu.Failed as failure:
                if len(batch) > 1:
                    middle = (len(batch) + 1) // 2
                    todo += [(batch[:middle], 0), (batch[middle:], 0)]
                elif failures < 2:
                    todo.append((batch, failures + 1))
                else:
                    self.futures[batch[0].key].set_exception(failure)
            else:
                for item, output in zip(batch, outputs):
                    self.futures[item.key].set_result(output)
