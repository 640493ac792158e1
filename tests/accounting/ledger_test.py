"""The ledger: what really ran, and the ε of exactly that."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from tf_dpadaptive.accounting.compose import epsilon_of_runs
from tf_dpadaptive.accounting.ledger import Ledger
from tf_dpadaptive.plan import PrivacyPlan

PLAN = PrivacyPlan(2.0, 10, 100, 50, delta=1e-5)


def optimizer(run_id, plan=PLAN, private=True):
    return SimpleNamespace(
        run_id=run_id, plan=plan, private=private, seeded=False
    )


def ledger(*entries):
    """From (run_id, plan, updates)."""
    made = Ledger()
    for run_id, plan, updates in entries:
        made.book(optimizer(run_id, plan), updates, verified=True)
    return made


def test_nothing_ran():
    assert Ledger().epsilon(1e-5) == 0
    assert "No private update" in Ledger().statement()


def test_one_run_however_often_it_stopped():
    whole = ledger(("a", PLAN, 3), ("a", PLAN, 4))
    assert whole.epsilon() == PLAN.epsilon(7)
    assert len(whole.runs) == 1


def test_two_optimizers_of_one_poisson_plan_add_up():
    two = ledger(("a", PLAN, 20), ("b", PLAN, 30))
    assert two.epsilon() == pytest.approx(PLAN.epsilon(50), rel=1e-9)
    assert two.remaining(PLAN) == 0


def test_two_runs_of_a_fixed_order_may_have_two_orders():
    # One update each: an example may have been in both.
    shuffled = dataclasses.replace(PLAN, sampling="shuffled")
    two = ledger(("a", shuffled, 1), ("b", shuffled, 1))
    assert two.epsilon() == epsilon_of_runs([(shuffled, 1)] * 2, 1e-5)
    assert two.epsilon() > shuffled.epsilon(2)


def test_raw_gradients_are_infinite():
    made = ledger(("a", PLAN, 3))
    made.book(optimizer("b", private=False), 1, verified=True)
    assert made.epsilon() == math.inf
    assert "NOT PRIVATE" in made.statement()


def test_statement_states_the_delta_asked_for():
    bare = dataclasses.replace(PLAN, delta=None)
    made = ledger(("a", bare, 3))
    with pytest.raises(ValueError, match="delta"):
        made.statement()
    assert "1e-06" in made.statement(delta=1e-6)


def test_unverified_updates_are_told():
    made = Ledger()
    made.book(optimizer("a"), 2, verified=False)
    assert not made.verified
    head, line, _ = made.statement().splitlines()
    assert head.startswith("SAMPLING NOT VERIFIED: (")
    assert "SAMPLING NOT VERIFIED for 2 updates" in line.split("ε =")[0]


def test_runs_are_said_to_be_counted_alone():
    one = ledger(("a", PLAN, 3))
    assert "counted alone" not in one.statement()
    two = ledger(("a", PLAN, 3), ("b", PLAN, 4)).statement().splitlines()
    assert "7 updates" in two[0]
    assert all("counted alone" in line for line in two[1:3])


def test_round_trip_through_json():
    made = ledger(("a", PLAN, 3), ("b", PLAN, 4))
    back = Ledger.from_config(json.loads(json.dumps(made.to_config())))
    assert back.runs == made.runs
    assert Ledger.from_config(None).runs == []


def test_merge_keeps_the_longer_of_one_run():
    made = ledger(("a", PLAN, 3))
    made.merge(ledger(("a", PLAN, 5), ("b", PLAN, 1)))
    assert [(r.run_id, r.updates) for r in made.runs] == [("a", 5), ("b", 1)]


def test_merge_keeps_both_branches_of_one_run():
    # 5 updates; one branch of them went on by 2, another by 3.
    made, other = ledger(("a", PLAN, 5)), ledger(("a", PLAN, 5))
    for branch, more in ((made, 2), (other, 3)):
        branch.fork("a")
        branch.runs[0].verified += more
    assert made.runs[0].common(other.runs[0]) == 5
    made.merge(other)
    assert sorted(r.updates for r in made.runs) == [7, 8]
    assert len({r.run_id for r in made.runs}) == 2
    # A checkpoint of this very branch is no other one.
    again = Ledger.from_config(other.to_config())
    again.runs[0].verified += 1
    other.merge(again)
    assert [r.updates for r in other.runs] == [9]
