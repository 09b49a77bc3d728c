"""The rate limiter's arithmetic: what is owed, from when on, and which slack cannot work."""

import math
from fractions import Fraction

import pytest

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.rate_limiter import Closed, RateLimiter


def make_limiter(ratio, warmup_steps=0, slack=10**12, max_insert=1, max_update=1):
    return RateLimiter(
        ratio,
        warmup_steps=warmup_steps,
        slack=slack,
        max_insert=max_insert,
        max_update=max_update,
        budget=10**12,
    )


def insert_steps(limiter, env_steps):
    assert limiter.wait_to_insert(env_steps, timeout=0.0)
    limiter.inserted(env_steps)


def pay(limiter):
    """Makes the updates that are owed, and says how many."""
    owed = limiter.owed()
    if owed:
        assert limiter.wait_to_update(owed, timeout=0.0)
    return owed


# ---- what is owed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "exact"),
    [
        (0.29, Fraction(29, 100)),  # 0.29 * 100 is 28.999999999999996
        (0.1, Fraction(1, 10)),
        (1 / 3, Fraction(1, 3)),
        (2 / 3, Fraction(2, 3)),
        (0.07, Fraction(7, 100)),
        (0.25, Fraction(1, 4)),
        (1.0, Fraction(1)),
        (1.1, Fraction(11, 10)),
        (4, Fraction(4)),
        (20.0, Fraction(20)),
        (1 / 256, Fraction(1, 256)),
        (0.001, Fraction(1, 1000)),
    ],
)
@pytest.mark.parametrize("insert", [1, 3])
def test_after_any_number_of_inserts_exactly_the_whole_updates_due_are_owed(ratio, exact, insert):
    limiter = make_limiter(ratio, max_insert=insert)

    for inserts in range(1, 1001):
        insert_steps(limiter, insert)
        assert limiter.owed() + limiter.updates == math.floor(inserts * insert * exact)
        pay(limiter)


def test_a_million_steps_at_a_ratio_without_a_finite_binary_form_are_exact():
    limiter = make_limiter(0.1)

    insert_steps(limiter, 999_999)

    assert limiter.owed() == 99_999
    assert limiter.balance == 99_999.9
    insert_steps(limiter, 1)
    assert limiter.owed() == 100_000


def test_four_envs_at_ratio_1_owe_as_many_updates_as_env_steps():
    # stable-baselines3 #1576, myosuite #296: 250 vector steps of 4 envs are 1000 updates.
    limiter = make_limiter(1.0, max_insert=4)

    made = []
    for _ in range(250):
        insert_steps(limiter, 4)
        made.append(pay(limiter))

    assert made == [4] * 250
    assert (limiter.env_steps, limiter.updates) == (1000, 1000)


@pytest.mark.parametrize("ratio", [1e-6, 3e-7, 1e-9])
def test_a_small_ratio_is_held_too(ratio):
    # 1e-9: one update in 10^9 env steps; a ratio that became 0 would never owe any.
    limiter = make_limiter(ratio)

    insert_steps(limiter, math.ceil(2 / ratio))

    assert limiter.owed() == 2


def test_owed_is_never_negative_although_the_balance_may_be():
    limiter = make_limiter(1.0)

    insert_steps(limiter, 2)
    assert limiter.wait_to_update(5, timeout=0.0)

    assert limiter.balance == -3.0
    assert limiter.owed() == 0


# ---- warm-up -------------------------------------------------------------------------------


def test_the_balance_is_0_up_to_the_warm_up_and_counts_from_there():
    limiter = make_limiter(4.0, warmup_steps=10)

    for _ in range(10):
        assert (limiter.balance, limiter.owed()) == (0.0, 0)
        insert_steps(limiter, 1)

    assert (limiter.balance, limiter.owed()) == (0.0, 0)
    insert_steps(limiter, 1)
    assert (limiter.balance, limiter.owed()) == (4.0, 4)


def test_an_insert_across_the_end_of_the_warm_up_counts_from_the_end():
    # Warm-up 10, inserts of 4: after 12 steps 2 are beyond it, at ratio .5 one update.
    limiter = make_limiter(0.5, warmup_steps=10, max_insert=4)

    for _ in range(3):
        insert_steps(limiter, 4)

    assert limiter.balance == 1.0


# ---- slack ---------------------------------------------------------------------------------


@pytest.mark.parametrize("slack", [0.5, 4, 5, 5.999])
def test_a_slack_that_lets_both_sides_wait_for_ever_is_refused(slack):
    # acme #233, reverb #82: ratio 4, inserts of 1, calls of K = 8. At a balance b the insert
    # waits if b + 4 > slack and the call if b - 8 < -slack; both hold for some b only if
    # 2 * slack < 4 + 8, so 6 is the least that works.
    with pytest.raises(ConfigError, match=r"learner\.slack") as refusal:
        make_limiter(4.0, warmup_steps=10, slack=slack, max_insert=1, max_update=8)

    message = str(refusal.value)
    assert message.startswith(f"learner.slack = {slack:g}: ")
    assert "2 * slack must be at least 12" in message
    assert message.endswith("use a slack of 6 or more")


@pytest.mark.parametrize("slack", [6, 6.0, 8, 8.5, 1000])
def test_the_least_slack_and_any_larger_one_work(slack):
    limiter = make_limiter(4.0, warmup_steps=10, slack=slack, max_insert=1, max_update=8)

    assert limiter.slack == slack


@pytest.mark.parametrize(
    ("ratio", "max_insert", "max_update", "slack"),
    [
        (4.0, 1, 8, 24),  # 2 (1 * 4 + 8)
        (0.5, 256, 128, 512),  # 2 (256 * .5 + 128)
        (0.29, 1, 1, Fraction(258, 100)),  # 2 (.29 + 1), without a rounding error
    ],
)
def test_by_default_the_slack_is_two_inserts_and_two_calls(ratio, max_insert, max_update, slack):
    limiter = make_limiter(ratio, slack=None, max_insert=max_insert, max_update=max_update)

    assert limiter.slack == slack


def test_following_the_remedy_of_a_refusal_works():
    # 3 * .5 + 2 = 3.5, half of it 1.75, and the message says 2.
    with pytest.raises(ConfigError, match="use a slack of 2 or more"):
        make_limiter(0.5, slack=1.7, max_insert=3, max_update=2)

    assert make_limiter(0.5, slack=2, max_insert=3, max_update=2).slack == 2


# ---- whoever may move does, until the end ---------------------------------------------------


@pytest.mark.parametrize("updates_first", [False, True])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 1.5, 4.0])
@pytest.mark.parametrize("max_update", [1, 3, 8])
@pytest.mark.parametrize("max_insert", [1, 5])
def test_every_accepted_setting_ends_with_exact_counts(
    ratio, max_update, max_insert, updates_first
):
    # Public: acme #207. Slack from the least accepted on, budgets that leave remainders.
    exact = Fraction(ratio)
    for warmup_steps in (0, 7):
        first = (max_insert - (warmup_steps > 0)) * exact
        least = max((max_insert * exact + max_update) / 2, first)
        for slack in (least, least + Fraction(1, 2), 2 * least):
            for budget in range(40, 48):
                limiter = RateLimiter(
                    ratio,
                    warmup_steps=warmup_steps,
                    slack=float(slack),
                    max_insert=max_insert,
                    max_update=max_update,
                    budget=budget,
                )
                drive(limiter, max_insert, max_update, updates_first)

                due = (limiter.env_steps - warmup_steps) * exact
                assert budget <= limiter.env_steps < budget + max_insert
                assert limiter.updates == due // max_update * max_update


def drive(limiter, max_insert, max_update, updates_first):
    """Lets one side go as far as it can, then the other, until both are done."""

    def insert():
        moved = limiter.wait_to_insert(max_insert, timeout=0.0)
        if moved:
            limiter.inserted(max_insert)
        return moved

    def update():
        return limiter.wait_to_update(max_update, timeout=0.0)

    sides = [update, insert] if updates_first else [insert, update]
    while sides:
        moved = False
        for side in list(sides):
            try:
                while side():
                    moved = True
            except Closed:
                sides.remove(side)
                moved = True
        assert moved, f"both wait at {limiter.env_steps} env steps and {limiter.updates} updates"
