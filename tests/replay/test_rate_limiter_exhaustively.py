"""The rate limiter in every state that many small settings can reach.

Threads are played: the limiter gets a `threading` of whose conditions a wait only looks and a
notification is remembered, and who calls is a number. So every interleaving of calls is walked
through, breadth first, and who sleeps moves only if it was woken: no timeout hides a lost wake-up.
"""

import collections
import itertools
import math
import threading
import types
from fractions import Fraction
from typing import NamedTuple

import pytest

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay import rate_limiter
from jaxrl_async.replay.rate_limiter import Closed, RateLimiter

STATES = {  # of each ratio, what the first test visits at least; 188,432 when it was written
    Fraction(1, 3): 18_000,
    Fraction(1, 2): 22_000,
    Fraction(1): 31_000,
    Fraction(2): 48_000,
    Fraction(3): 67_000,
}
CHUNKS = [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3)]  # env steps per insert of one or two actors
REFUSED, PASSED, CLOSED = "refused", "passed", "closed"


class State(NamedTuple):
    """All that the limiter and those around it can be."""

    admitted: int
    stored: int
    updates: int
    line: tuple[tuple[int, bool], ...] = ()  # (actor, may it call), in order of arrival
    storing: tuple[int, ...] = ()  # actors that were admitted and have not stored yet
    learner_calls: bool = True  # False: it was refused and sleeps
    learner_ended: bool = False


class Place:
    """A condition on which nobody sleeps: a wait looks once, and a notification is remembered."""

    __slots__ = ("is_woken",)

    def __init__(self, lock=None, is_woken=False):
        self.is_woken = is_woken

    def wait_for(self, predicate, timeout):
        assert timeout == 0.0
        return predicate()

    def notify(self):
        self.is_woken = True

    notify_all = notify


class Caller:
    """Which actor calls now, in the place of its thread."""

    number = 0


@pytest.fixture
def caller(monkeypatch):
    caller = Caller()
    played = types.SimpleNamespace(
        Lock=threading.Lock, Condition=Place, get_ident=lambda: caller.number
    )
    monkeypatch.setattr(rate_limiter, "threading", played)
    return caller


class Setting(NamedTuple):
    """What a limiter is made of, but for its slack."""

    ratio: Fraction
    warmup: int
    chunks: tuple[int, ...]  # of each actor
    K: int
    budget: int

    def limiter(self, slack):
        return RateLimiter(
            float(self.ratio),
            warmup_steps=self.warmup,
            slack=slack,
            max_insert=max(self.chunks),
            max_update=self.K,
            budget=self.budget,
        )

    def least_slack(self):
        """The smallest that is taken, found by asking: it is a multiple of 1 / 2q."""
        for n in itertools.count():
            slack = Fraction(n, 2 * self.ratio.denominator)
            try:
                self.limiter(slack)
            except ConfigError:
                continue
            return slack


class Walk:
    """From some states of a limiter to all that can follow, and what must hold in each."""

    def __init__(self, caller, setting, slack):
        self.caller, self.setting, self.limiter = caller, setting, setting.limiter(slack)
        self.p, self.q = setting.ratio.numerator, setting.ratio.denominator
        self.call = setting.K * self.q  # balances are times q, and so are whole numbers
        self.slack = math.floor(self.limiter.slack * self.q)
        self.most = setting.budget + max(setting.chunks)
        self.ends = set()

    def from_states(self, roots, keeps_slack=True):
        """Visits all, and gives them."""
        seen, ahead = set(roots), collections.deque(roots)
        while ahead:
            state = ahead.popleft()
            self.check(state, keeps_slack)
            for after in self.moves(state):
                if after not in seen:
                    seen.add(after)
                    ahead.append(after)
        return seen

    # ---- what holds ------------------------------------------------------------------------

    def balance(self, stored, updates):
        return max(0, stored - self.setting.warmup) * self.p - updates * self.q

    def check(self, state, keeps_slack):
        balance, budget = self.balance(state.stored, state.updates), self.setting.budget
        assert state.admitted < self.most, f"more than the last chunk: {state}"
        if state.stored < max(1, self.setting.warmup):
            assert state.updates == 0, f"updates in the warm-up: {state}"
        elif keeps_slack:
            assert -self.slack <= balance, f"the learner is too far ahead: {state}"
            if balance > self.slack:
                # "Where no whole call is due any more, the last inserts pass freely." That is less
                # than a call short of the budget, and the last chunk goes beyond it by less than
                # itself. 789 of the 188,432 states are of this kind.
                beyond = (max(self.setting.chunks) - 1) * self.p
                is_tail = self.balance(budget, state.updates) < self.call
                assert is_tail, f"the actors are too far ahead: {state}"
                assert balance < self.call + beyond, f"the actors are too far ahead: {state}"
        if keeps_slack:
            self.put(state)
            self.limiter.check_valid()
        if state.learner_ended:
            assert budget <= state.stored == state.admitted, f"ended before the actors: {state}"
            assert 0 <= balance < self.call, f"ended with a call due: {state}"

    def moves(self, state):
        """The states one call further on; asserts that one of them is nearer to the end."""
        nearer, others = [], []
        for actor in state.storing:
            nearer.append(self.store(state, actor))
        waiting = dict(state.line)
        for actor in range(len(self.setting.chunks)):
            if actor in state.storing:
                continue
            result, after = self.insert(state, actor)
            if actor in waiting:
                is_nearer = result != REFUSED
                assert waiting[actor] or not is_nearer, f"actor {actor} sleeps, can pass: {state}"
            else:  # still with its env, and may never come; so with a line it must not be needed
                is_nearer = result == PASSED and not waiting
            (nearer if is_nearer else others).append(after)
        if not state.learner_ended:
            result, after = self.update(state)
            is_nearer = result != REFUSED
            assert state.learner_calls or not is_nearer, f"the learner sleeps, can pass: {state}"
            (nearer if is_nearer else others).append(after)
        if not nearer:
            is_spent = state.admitted >= self.setting.budget
            assert is_spent and state.learner_ended and not waiting, f"nobody can move: {state}"
            self.ends.add(state)
        return nearer + others

    # ---- the calls -------------------------------------------------------------------------

    def store(self, state, actor):
        self.put(state)
        self.limiter.inserted(self.setting.chunks[actor])
        return self.got(tuple(a for a in state.storing if a != actor), state.learner_ended)

    def insert(self, state, actor):
        self.put(state)
        self.caller.number = actor
        storing, result = state.storing, REFUSED
        try:
            if self.limiter.wait_to_insert(self.setting.chunks[actor], timeout=0.0):
                assert not state.line or state.line[0][0] == actor, f"{actor} overtook: {state}"
                storing, result = tuple(sorted((*storing, actor))), PASSED
            else:
                self.limiter._waiting[actor].is_woken = False  # asleep, or asleep again
        except Closed:
            result = CLOSED
        return result, self.got(storing, state.learner_ended)

    def update(self, state):
        self.put(state)
        try:
            passed = self.limiter.wait_to_update(self.setting.K, timeout=0.0)
        except Closed:
            return CLOSED, self.got(state.storing, learner_ended=True)
        self.limiter._may_update.is_woken = passed
        return PASSED if passed else REFUSED, self.got(state.storing, learner_ended=False)

    def put(self, state):
        """The limiter in that state."""
        limiter = self.limiter
        limiter.restore(state.stored, state.updates)
        limiter._admitted = state.admitted
        limiter._waiting.clear()
        for actor, is_woken in state.line:
            limiter._waiting[actor] = Place(is_woken=is_woken)
        limiter._may_update.is_woken = state.learner_calls

    def got(self, storing, learner_ended):
        """The state that the limiter is in now."""
        limiter = self.limiter
        line = tuple((actor, place.is_woken) for actor, place in limiter._waiting.items())
        return State(
            limiter._admitted,
            limiter._env_steps,
            limiter._updates,
            line,
            storing,
            learner_ended or limiter._may_update.is_woken,
            learner_ended,
        )


START = State(0, 0, 0)


@pytest.mark.parametrize("ratio", STATES, ids=str)
def test_in_every_state_somebody_can_move_within_the_slack_until_all_is_done_exactly(ratio, caller):
    visited = 0

    for warmup, chunks, K, is_least in itertools.product(range(5), CHUNKS, range(1, 5), (1, 0)):
        # 11 is no multiple of 2 or 3, 7 none either: the last chunk goes beyond.
        setting = Setting(ratio, warmup, chunks, K, budget=11 if is_least else 7)
        walk = Walk(caller, setting, setting.least_slack() if is_least else None)
        visited += len(walk.from_states([START]))

        assert walk.ends
        for end in walk.ends:
            due = max(0, end.stored - warmup) * ratio
            assert end.updates == due // K * K, f"{setting} ends in {end}"

    assert visited > STATES[ratio]


@pytest.mark.parametrize("budget", range(1, 13))
def test_any_budget_ends_exactly_also_within_the_warm_up(budget, caller):
    # Ratio 2, warm-up 4, K = 3, chunks of 1 and 3: 6 env steps are 4 updates due, one call.
    setting = Setting(Fraction(2), 4, (1, 3), 3, budget)
    walk = Walk(caller, setting, setting.least_slack())

    visited = walk.from_states([START])

    assert len(visited) > 9 * budget
    assert {end.stored for end in walk.ends} <= set(range(budget, budget + 3))
    for end in walk.ends:
        assert end.updates == max(0, end.stored - 4) * 2 // 3 * 3


def three_actors(caller):
    # The only walk in which two may stand in line behind the one that reaches the budget.
    setting = Setting(Fraction(1), 1, (1, 2, 3), 2, budget=7)
    return Walk(caller, setting, setting.least_slack())


def test_three_actors_pass_in_the_order_of_their_arrival_until_all_is_done_exactly(caller):
    walk = three_actors(caller)

    visited = walk.from_states([START])

    assert len(visited) > 700
    for end in walk.ends:
        assert end.updates == (end.stored - 1) // 2 * 2


def test_close_wakes_all_who_sleep_and_ends_every_call_in_every_state(caller):
    walk = three_actors(caller)
    visited, limiter = walk.from_states([START]), walk.limiter

    for state in visited:
        walk.put(state)
        limiter.close()

        after = walk.got(state.storing, state.learner_ended)
        assert all(is_woken for _, is_woken in after.line), f"sleeps on: {state}"
        assert after.learner_calls, f"the learner sleeps on: {state}"
        with pytest.raises(Closed):
            limiter.wait_to_update(2, timeout=0.0)
        for caller.number in {0, 1, 2} - set(state.storing):
            with pytest.raises(Closed):
                limiter.wait_to_insert(1, timeout=0.0)
        assert not limiter._waiting
        limiter._is_closed = False


@pytest.mark.parametrize("ratio", STATES, ids=str)
def test_from_any_counts_that_are_restored_somebody_can_move_until_all_is_done(ratio, caller):
    # A checkpoint has the updates done, which are fewer than those let through, and K or the slack
    # may be others than before: so any number of updates up to those due at the end.
    visited = 0

    for warmup, chunks, K in itertools.product((0, 2), ((2,), (1, 3)), (1, 3)):
        setting = Setting(ratio, warmup, chunks, K, budget=7)
        walk = Walk(caller, setting, setting.least_slack())
        roots = [
            State(stored, stored, updates)
            for stored in range(max(1, warmup), 9)
            for updates in range(math.floor((max(stored, 7) - warmup) * ratio) + 1)
        ]
        visited += len(walk.from_states(roots, keeps_slack=False))

        assert walk.ends

    assert visited > 800  # at 1/3; six times as many at 3


def test_this_walk_finds_the_state_in_which_a_slack_too_small_would_stop_all(caller):
    # Ratio 1, chunks of 1, K = 2: the least slack is 1.5, which holds whole balances to 1. With 0
    # neither an insert (1 > 0) nor a call (-2 < 0) may pass at a balance of 0.
    setting = Setting(Fraction(1), 1, (1,), 2, budget=7)
    assert setting.least_slack() == Fraction(3, 2)
    walk = Walk(caller, setting, None)
    walk.limiter._scaled_slack = walk.slack = 0

    with pytest.raises(AssertionError, match=r"nobody can move: State\(admitted=1, stored=1, upd"):
        walk.from_states([START])


class DeafPlace(Place):
    """A condition whose notifications are lost."""

    def notify_all(self):
        pass


def test_this_walk_finds_an_actor_that_nobody_wakes(caller):
    setting = Setting(Fraction(1), 1, (1, 2), 2, budget=7)
    walk = Walk(caller, setting, setting.least_slack())
    walk.limiter._wake_line = lambda: None

    with pytest.raises(AssertionError, match=r"actor [01] sleeps, can pass"):
        walk.from_states([START])


def test_this_walk_finds_a_learner_that_nobody_wakes(caller):
    setting = Setting(Fraction(1), 1, (1, 2), 2, budget=7)
    walk = Walk(caller, setting, setting.least_slack())
    walk.limiter._may_update = DeafPlace()

    with pytest.raises(AssertionError, match="the learner sleeps, can pass"):
        walk.from_states([START])


@pytest.mark.parametrize(
    ("admitted", "stored", "updates"),
    [
        (0, 0, 1),  # an update before anything is stored
        (3, 4, 2),  # more stored than admitted
        (9, 9, 0),  # 8 due beyond the warm-up of 1, and a slack of 4
        (2, 2, 6),  # 5 ahead
    ],
)
def test_counts_that_cannot_be_are_found(admitted, stored, updates):
    limiter = Setting(Fraction(1), 1, (1,), 2, budget=100).limiter(slack=4)
    limiter.restore(stored, updates)
    limiter._admitted = admitted

    with pytest.raises(AssertionError):
        limiter.check_valid()
