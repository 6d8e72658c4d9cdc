# %% [markdown]
# # 13 · Exercise: the interview that runs
#
# "You have one GPU. It takes up to a hundred inputs at a time, and callers wait for their answers. Design the service."
# It's among the most reported prompts of inference interviews, and the first answer is easy. Then the interviewer goes on:
# the GPU dies in mid-batch. One input crashes it. The load triples. Lengths vary.
#
# Here your design runs. You write the batcher, the check plays the interviewer, and lost, duplicated and late answers
# are counted. Give yourself ten minutes with pen and paper first: *what do I ask before I design?*
#
# | | what a panel hears |
# |---|---|
# | **junior** | a queue, a loop, batches of a hundred. Retries everything when something fails |
# | **senior** | bounds the wait for a batch to fill, halves a batch that failed, sends retries the first answer, bounds the queue |
# | **staff** | asks what a caller does after its time-out; derives the queue's bound from it; knows that a batch costs its longest input times its size, and says which number would show each of these in production |

# %%
from course.lab import check, hint

# %% [markdown] exercise="one-gpu"
# ## One GPU, a hundred inputs a batch
#
# *one-gpu · lesson 13 · ●●● · 60 minutes · 19 points*
#
# Write a class `Batcher` (150 lines are plenty):
#
# - `Batcher(gpu)` is called once, inside a running event loop (so it may start tasks).
# - `await batcher.infer(item)` is called by many callers at the same time. It returns the model's output for this item, or
#   raises `gpu.Refused` or `gpu.Failed`.
#
# `item.key` is the caller's own, `item.tokens` the item's length. The `gpu` has
#
# - `await gpu.run(items)`: the outputs of 1 to `gpu.MAX_BATCH` (100) items, in their order. **One run at a time.** It raises
#   `gpu.Failed` if the GPU died on the way, or if one of the inputs made it fail; it doesn't say which. The GPU has started again
#   by then. What was in that batch has no output.
# - `gpu.seconds(count, tokens)`: how long a run of so many items takes, if the longest has so many tokens (the others are padded).
# - `gpu.patience`: seconds that a caller waits. After that its call is cancelled.
#
# What the interviewer tries, and counts:
#
# 1. **Answers find their callers.** 250 callers within a second.
# 2. **A lone caller, and a crowd.** Alone, a caller may wait 0.03 s for company, no longer. 300 callers within 0.2 s fit into six
#    batches.
# 3. **The GPU dies in mid-batch**, once or a few times. Every caller gets an output, and nothing that had been computed is computed again.
#    An input that has failed twice in a batch of its own may be given up.
# 4. **One input is poison**: every batch that it's in fails. Its caller gets `gpu.Failed`, all others their outputs. 24 batches are
#    enough for 150 inputs, so trying each by itself isn't the way.
# 5. **The same key again**: a caller who lost the connection asks again, immediately or a few seconds later. Each key is computed
#    once, and both calls get its output. So keep outputs for at least ten seconds; nothing else is kept from one caller for the next.
# 6. **Callers leave** (their `infer` is cancelled) while their item is queued: it's not computed, and no other caller notices. An item
#    that is in a run already may go on.
# 7. **Three times the load** for two seconds, with 1 s of patience. A caller that can't be served in time is refused (`gpu.Refused`) within 0.1 s;
#    at most 1% wait in vain; and at least 90% of what full batches do in two seconds is answered. At 60% load no caller is refused.
# 8. **Lengths vary**: most items have 20 to 100 tokens, a few 1,500 to 2,000; 1 s of patience. At most 2% of either kind may go without an output.
#
# Time is simulated: `asyncio.sleep(10)` takes no time to wait for. Use `asyncio`'s clock (`asyncio.get_running_loop().time()`), not the computer's.

# %% [markdown]
# **A worked example.** A batcher that serves callers one by one, each in a batch of its own. It routes answers
# correctly, and needs 0.041 s for each; a full batch takes 0.16 s for a hundred.

# %%
import asyncio


class OneByOne:
    def __init__(self, gpu):
        self.gpu, self.one_at_a_time = gpu, asyncio.Lock()

    async def infer(self, item):
        async with self.one_at_a_time:
            (output,) = await self.gpu.run([item])
            return output


# %% [markdown]
# **Now you.** `infer` is written, so that equal keys meet and those who leave are forgotten. Which items make the next batch, what
# becomes of a batch that fails, and who is refused: that's yours.


# %% answer="one-gpu"
import asyncio
from dataclasses import dataclass


@dataclass(eq=False)
class Entry:
    """An item that at least one caller waits for."""

    item: object
    answer: asyncio.Future
    callers: int = 0
    has_begun: bool = False


class Batcher:
    MAX_WAIT = 0.01  # seconds for a batch to fill, when nothing runs
    LONGEST_RUN = 0.3  # seconds: a share of the shortest patience
    KEPT = 10_000  # answers, for callers that ask again

    def __init__(self, gpu):
        self.gpu = gpu
        self.queue = []  # entries, oldest first
        self.entries = {}  # by key: queued, running, and the latest answers
        self.arrived = asyncio.Event()
        self.worker = asyncio.create_task(self.serve())

    async def infer(self, item):
        entry = self.entries.get(item.key)
        if entry is None:
            if self.would_be_late(item):
                raise self.gpu.Refused("busy: try again in a second")
            entry = self.entries[item.key] = Entry(item, asyncio.get_running_loop().create_future())
            self.queue.append(entry)
            self.arrived.set()
        entry.callers += 1
        try:
            return await asyncio.shield(entry.answer)  # one caller who leaves doesn't end it for the others
        finally:
            entry.callers -= 1
            if not entry.callers and not entry.has_begun:
                self.queue.remove(entry)
                del self.entries[item.key]

    async def serve(self):
        while True:
            await self.arrived.wait()
            if len(self.queue) < self.gpu.MAX_BATCH:
                await asyncio.sleep(self.MAX_WAIT)
            if batch := self.next_batch():
                await self.run(batch)
            if not self.queue:
                self.arrived.clear()

    # [solution]
    def would_be_late(self, item):
        """Whether those ahead take so long that this one would leave before its answer comes."""
        ahead = (
            sum(self.gpu.seconds(self.gpu.MAX_BATCH, entry.item.tokens) for entry in self.queue) / self.gpu.MAX_BATCH
        )
        return self.LONGEST_RUN + ahead + self.gpu.seconds(1, item.tokens) > self.gpu.patience

    def next_batch(self):
        """The oldest, and others of about its length: a run costs its longest item times its size."""
        batch, longest = [], 0
        for entry in self.queue:
            oldest, tokens = self.queue[0].item.tokens, max(longest, entry.item.tokens)
            is_alike = oldest / 5 <= entry.item.tokens <= 5 * oldest
            fits = not batch or self.gpu.seconds(len(batch) + 1, tokens) <= self.LONGEST_RUN
            if is_alike and fits and len(batch) < self.gpu.MAX_BATCH:
                batch.append(entry)
                longest = tokens
                entry.has_begun = True
        self.queue = [entry for entry in self.queue if not entry.has_begun]
        return batch

    async def run(self, batch, has_failed=False):
        """Set the answer of each. Of a batch that fails, both halves pass after a death, and one if an item is poison."""
        try:
            outputs = await self.gpu.run([entry.item for entry in batch])
        except self.gpu.Failed as failure:
            if len(batch) == 1 and has_failed:
                batch[0].answer.set_exception(failure)
            elif len(batch) == 1:
                await self.run(batch, has_failed=True)
            else:
                half = len(batch) // 2
                await self.run(batch[:half])
                await self.run(batch[half:])
            return
        for entry, output in zip(batch, outputs):
            entry.answer.set_result(output)
        while len(self.entries) > self.KEPT:  # dictionaries keep the order of arrival
            del self.entries[next(iter(self.entries))]

    # [stub]
    # def would_be_late(self, item):
    #     return False  # who is refused?
    #
    # def next_batch(self):
    #     raise NotImplementedError("take entries off self.queue, and note that they have begun")
    #
    # async def run(self, batch):
    #     raise NotImplementedError("run them, and set each entry's answer; what if the run fails?")
    # [end]


# %%
check("one-gpu", Batcher)

# %% [markdown]
# ### What the interviewer asks next
#
# - *"How would you prove that 10 ms is the right wait?"* Sweep it at three loads and plot p99 over throughput: below the knee it only adds
#   latency for lone callers, and once batches fill by themselves it does nothing. The number to watch is the mean batch size.
# - *"Two GPUs?"* One queue, two workers that pull: a queue per GPU lets one idle while the other has a line.
# - *"What would change your mind about refusing?"* Callers that don't retry and would rather wait: then the bound is memory, not patience.
# - *"Where does this break for an LLM?"* Outputs differ in length, too, and the batch would run until its longest answer ends. That's
#   static batching; [lesson 02b](../course/02b_batching.ipynb) has what serving engines do instead.
