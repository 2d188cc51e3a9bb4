"""What of a partition is committed, and what its commit says of the rest."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from taskharbor.streams.offsets import AHEAD_MAX, METADATA_MAX, PartitionOffsets, decode, encode

offsets = st.sets(st.integers(0, AHEAD_MAX - 1), max_size=400)


@given(st.integers(0, 2**60), offsets)
def test_metadata_says_exactly_what_is_finished(offset, relative):
    finished = {offset + each for each in relative}
    assert decode(offset, encode(offset, finished)) == finished


@pytest.mark.parametrize(
    "relative",
    [range(0, AHEAD_MAX, 2), range(1, AHEAD_MAX, 3), range(1, AHEAD_MAX), [AHEAD_MAX - 1]],
    ids=["every second", "every third", "all but one", "the last"],
)
def test_metadata_fits_however_the_finished_ones_lie(relative):
    text = encode(7, {7 + each for each in relative})
    assert len(text) <= METADATA_MAX
    assert decode(7, text) == {7 + each for each in relative}


def test_long_runs_take_few_characters():
    assert len(encode(0, range(1, 9_000))) < 25


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "of another program",
        "taskharbor1:",
        "taskharbor1:r!!",
        "taskharbor1:x",
        "taskharbor1:b" + "A" * 4000,
    ],
)
def test_foreign_or_damaged_metadata_says_nothing(metadata):
    assert decode(5, metadata) == set()


def test_runs_beyond_the_limit_are_damaged():
    huge = "taskharbor1:r" + "_____38="  # a run of billions
    assert decode(0, huge) == set()


def test_only_what_everything_below_has_finished_is_committed():
    partition = PartitionOffsets(10)
    assert [partition.take(offset) for offset in (10, 11, 12, 13)] == [True] * 4
    partition.finish(12)
    partition.finish(11)
    assert partition.first_open == 10
    offset, metadata = partition.to_commit() or (0, "")
    assert (offset, decode(offset, metadata)) == (10, {11, 12})
    partition.finish(10)
    assert partition.first_open == 13
    assert partition.to_commit() == (13, "")


def test_what_the_broker_has_is_not_committed_again():
    partition = PartitionOffsets(0)
    assert partition.to_commit() is None
    partition.take(0)
    partition.take(1)
    partition.finish(1)
    commit = partition.to_commit()
    assert commit is not None
    partition.acknowledged(*commit)
    assert partition.to_commit() is None
    partition.finish(0)
    assert partition.to_commit() == (2, "")


def test_gaps_of_the_log_do_not_hold_up_the_commit():
    partition = PartitionOffsets(0)
    for offset in (3, 4, 90):
        assert partition.take(offset)
        partition.finish(offset)
    assert partition.to_commit() == (91, "")


def test_what_was_finished_before_is_not_executed_again():
    partition = PartitionOffsets(5, {6, 8, 2})
    assert [partition.take(offset) for offset in (5, 6, 7, 8, 9)] == [True, False, True, False, True]
    for offset in (5, 7, 9):
        partition.finish(offset)
    assert partition.to_commit() == (10, "")


def test_nothing_is_taken_or_committed_of_a_log_that_begins_again_until_it_is_trusted():
    partition = PartitionOffsets(1_000)
    assert partition.take(1_000)
    assert not partition.take(0)
    assert partition.is_in_doubt
    partition.finish(1_000)
    assert not partition.take(1)
    assert not partition.take(1_001)
    assert partition.to_commit() is None
    assert partition.position == 1_001
    partition.trust()
    assert not partition.is_in_doubt
    assert partition.take(1_001)
    assert partition.to_commit() == (1_001, "")
    assert partition.jumps() == []


def test_gaps_are_reported_once_and_not_for_a_group_that_is_new_to_the_partition():
    partition, new = PartitionOffsets(5), PartitionOffsets(None)
    for offset in (5, 8, 9, 20):
        assert partition.take(offset)
        assert new.take(offset)
    assert partition.jumps() == [(6, 8), (10, 20)]
    assert partition.jumps() == []
    assert new.jumps() == [(6, 8), (10, 20)]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 40), unique=True), st.randoms(use_true_random=False))
def test_commit_never_goes_beyond_what_is_unfinished(order, chance):
    partition = PartitionOffsets(0)
    for offset in range(41):
        partition.take(offset)
    done: set[int] = set()
    for offset in order:
        partition.finish(offset)
        done.add(offset)
        first = next(each for each in range(42) if each not in done)
        commit = partition.to_commit()
        assert partition.first_open == first
        if commit is not None:
            assert commit[0] == first
            assert decode(*commit) == {each for each in done if each > first}
            if chance.random() < 0.5:
                partition.acknowledged(*commit)
