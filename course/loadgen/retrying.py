"""A client over a real server that tries again, by the policy that simulated clients follow."""

import asyncio

from course.loadgen.client import Client, ClientExchange, Failure, now
from course.loadgen.observation import observe
from course.loadgen.planned_requests import PlannedRequest
from course.simulator.cluster.retries import Retries

ASKING_AGAIN_HELPS = {
    Failure.RATE_LIMITED,
    Failure.SERVER_ERROR,
    Failure.NO_CONNECTION,
    Failure.DISCONNECTED,
    Failure.TIMEOUT,
    Failure.BAD_STREAM,
}


async def send_until_answered(
    client: Client, request: PlannedRequest, retries: Retries, tried: list[ClientExchange]
) -> bool:
    """Send one request, and again as the policy allows. Whether it was answered.

    Args:
        retries: shared by the requests that share a budget and a breaker.
        tried: gets every attempt when it leaves; it is whole, too, when this is cancelled. An attempt that an open
            breaker kept back was never sent: `sent` is None.
    """
    prompt = [{"role": "user", "content": request.prompt}]
    body = client.endpoint.body(prompt, request.max_tokens)
    attempts = 0
    while True:
        exchange = ClientExchange(request)
        tried.append(exchange)
        ticket = retries.begin(now(), is_retry=attempts > 0)
        if ticket is None:
            exchange.ended = now()
            return False
        attempts += 1
        ok = helps = False
        try:
            await client.stream(body, exchange)
            exchange.is_over = True
            outcome = observe(exchange, 0.0)
            ok, helps = outcome.completed, outcome.outcome in ASKING_AGAIN_HELPS
        finally:
            retries.end(ticket, now(), ok=not helps)
        pause = retries.pause(attempts, exchange.retry_after_s) if helps else None
        if pause is None:
            return ok
        await asyncio.sleep(pause)
