"""The rate limiter between threads: who passes, who waits, who is woken."""

import random
import sys
import threading

import pytest

from jaxrl_async.replay.rate_limiter import Closed, RateLimiter

NOW, LONG = 0.0, 30.0


def make_limiter(ratio=1.0, warmup=0, slack=None, insert=1, update=1, budget=10**9):
    return RateLimiter(
        ratio, warmup_steps=warmup, slack=slack, max_insert=insert, max_update=update, budget=budget
    )


def insert(limiter, env_steps=1, timeout=NOW):
    admitted = limiter.wait_to_insert(env_steps, timeout)
    if admitted:
        limiter.inserted(env_steps)
    return admitted


def test_both_sides_stop_at_the_slack():
    # ratio 4, warm-up 10, slack 8, K = 8, chunks of 1 (acme #233): the balance is 0 after 10 steps,
    # inserts 11 and 12 bring it to 4 and 8, the 13th would bring it to 12
    limiter = make_limiter(ratio=4.0, warmup=10, slack=8, update=8)

    assert all(insert(limiter) for _ in range(10))
    assert limiter.balance == 0
    assert limiter.wait_to_update(8, NOW)  # down to -8
    assert not limiter.wait_to_update(8, NOW)
    assert [insert(limiter) for _ in range(5)] == [True, True, True, True, False]
    assert limiter.balance == 8


def test_no_update_passes_in_the_warm_up():
    limiter = make_limiter(warmup=3, slack=5, update=2)

    assert [limiter.wait_to_update(2, NOW), insert(limiter), insert(limiter)] == [False, True, True]
    assert not limiter.wait_to_update(2, NOW)
    assert insert(limiter)
    assert limiter.wait_to_update(2, NOW)


def test_what_is_admitted_and_not_yet_stored_cannot_be_sampled():
    limiter = make_limiter(warmup=2, slack=4)
    for _ in range(2):
        assert limiter.wait_to_insert(1, NOW)

    assert not limiter.wait_to_update(1, NOW)
    limiter.inserted(2)
    assert limiter.wait_to_update(1, NOW)


def test_updates_of_a_run_are_exact_though_the_learner_may_run_ahead():
    # 10 env steps less 2 of warm-up at 0.5 are 4 updates; slack would let the learner go to 6
    limiter = make_limiter(ratio=0.5, warmup=2, slack=2, budget=10)
    made = 0

    for _ in range(10):
        insert(limiter, timeout=NOW)
        while limiter.wait_to_update(1, NOW) if not limiter.is_spent else False:
            made += 1
    with pytest.raises(Closed):
        while limiter.wait_to_update(1, NOW):
            made += 1

    assert (limiter.env_steps, made, limiter.updates) == (10, 4, 4)


def test_the_chunk_that_reaches_the_budget_is_the_last():
    limiter = make_limiter(warmup=100, insert=4, budget=10)

    assert [insert(limiter, 4) for _ in range(3)] == [True] * 3
    with pytest.raises(Closed):
        limiter.wait_to_insert(4, NOW)
    assert limiter.env_steps == 12


def test_free_running_waits_for_nobody_and_ends_at_once():
    limiter = make_limiter(ratio=None, warmup=2, budget=5)
    assert not limiter.wait_to_update(1, NOW)

    for _ in range(4):
        assert insert(limiter)
    assert all(limiter.wait_to_update(1, NOW) for _ in range(100))
    assert insert(limiter)

    with pytest.raises(Closed):
        limiter.wait_to_update(1, NOW)


def in_threads(*bodies):
    """Runs the bodies in threads; returns the threads and what they raised."""
    raised = []

    def guard(body):
        try:
            body()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guard, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    return threads, raised


def join(threads):
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def test_close_wakes_every_waiter_now_and_later():
    limiter = make_limiter(warmup=1, slack=1)
    assert insert(limiter)
    assert insert(limiter)  # balance 1: the next insert waits
    waiting = threading.Barrier(4)

    def actor():
        waiting.wait(LONG)
        limiter.wait_to_insert(1, LONG)

    def learner():
        waiting.wait(LONG)
        while True:
            limiter.wait_to_update(1, LONG)

    threads, raised = in_threads(actor, actor, learner)
    waiting.wait(LONG)
    limiter.close()
    join(threads)

    assert all(isinstance(error, Closed) for error in raised)
    assert len(raised) == 3
    with pytest.raises(Closed):
        limiter.wait_to_insert(1, LONG)
    with pytest.raises(Closed):
        limiter.wait_to_update(1, LONG)


def test_a_large_chunk_is_not_starved_by_small_ones():
    # slack 12: at a balance of 9 a chunk of 2 fits and one of 8 does not; the large one came first
    limiter = make_limiter(warmup=1, slack=12, insert=8)
    insert(limiter)
    for _ in range(9):
        insert(limiter)
    order = []

    def wait(env_steps):
        while not limiter.wait_to_insert(env_steps, 0.01):
            pass
        order.append(env_steps)
        limiter.inserted(env_steps)

    large, raised = in_threads(lambda: wait(8))
    while not limiter._waiting:
        assert large[0].is_alive()
    small, _ = in_threads(lambda: wait(2))
    while len(limiter._waiting) < 2:
        assert small[0].is_alive()
    assert order == []
    for _ in range(9):
        assert limiter.wait_to_update(1, LONG)
    join(large + small)

    assert order == [8, 2]
    assert raised == []


@pytest.mark.parametrize("chunks", [(1, 1), (1, 1, 1, 1), (1, 2, 4)])
def test_where_all_wait_each_is_admitted_equally_often(chunks):
    # saturation by construction: the learner takes a call only when every actor stands in line
    turns, slack = 50, 16
    limiter = make_limiter(warmup=1, slack=slack, insert=max(chunks))
    admitted = [0] * len(chunks)
    apart = []

    def actor(index):
        try:
            while True:
                if limiter.wait_to_insert(chunks[index], LONG):
                    limiter.inserted(chunks[index])
                    admitted[index] += 1
        except Closed:
            pass

    threads, raised = in_threads(*(lambda i=i: actor(i) for i in range(len(chunks))))

    def all_wait():
        while len(limiter._waiting) < len(chunks):
            assert all(thread.is_alive() for thread in threads)

    all_wait()
    start = list(admitted)
    for _ in range(turns * sum(chunks)):
        assert limiter.wait_to_update(1, LONG)
        all_wait()
        since = [now - then for now, then in zip(admitted, start, strict=True)]
        apart.append(max(since) - min(since))
    limiter.close()
    join(threads)

    assert raised == []
    assert max(apart) <= 1
    assert min(since) >= turns - 1 - 2 * slack / sum(chunks)


@pytest.mark.parametrize("ratio", [0.1, 0.25, 1.0, 4.0])
@pytest.mark.parametrize("chunks", [(1,), (1, 1), (1, 3, 8, 2)])
def test_the_balance_keeps_its_slack_and_the_end_is_exact(ratio, chunks):
    K, warmup, budget = 4, 20, 2_000
    limiter = make_limiter(ratio, warmup, insert=max(chunks), update=K, budget=budget)
    before = sys.getswitchinterval()
    admitted = [0] * len(chunks)

    def check():
        balance = limiter.balance
        assert -limiter.slack <= balance <= limiter.slack

    def actor(index):
        try:
            while True:
                if limiter.wait_to_insert(chunks[index], LONG):
                    limiter.inserted(chunks[index])
                    admitted[index] += 1
                    check()
        except Closed:
            pass

    def learner():
        pause = random.Random(0)
        try:
            while True:
                assert limiter.wait_to_update(K, LONG)
                for _ in range(pause.randrange(20)):
                    check()
        except Closed:
            pass

    sys.setswitchinterval(1e-6)
    try:
        threads, raised = in_threads(learner, *(lambda i=i: actor(i) for i in range(len(chunks))))
        join(threads)
    finally:
        sys.setswitchinterval(before)

    assert raised == []
    assert budget <= limiter.env_steps < budget + sum(chunks)
    # whole calls in (env steps - warm-up) * ratio, exactly; the ratios here are exact in floats
    due = (limiter.env_steps - warmup) * round(ratio * 100) // 100
    assert limiter.updates == due // K * K
