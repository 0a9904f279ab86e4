"""What was finished is found again as it was; what was torn, asked otherwise or drawn from other weights is not."""

from dataclasses import fields, replace
from pathlib import Path
from threading import Event, current_thread, main_thread
from unittest.mock import patch

import numpy as np
import pytest

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.passport import passport_of
from cascade_rl.engine.core.rollouts import PART, Kept, Outcome, Passport, Request, Rollout, Sampling
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run import append_log
from cascade_rl.rl_stages.run.append_log import AppendLog, read_records
from cascade_rl.rl_stages.run.ledger import Ledger, read_ledger, take_up
from tests.rl_stages.run.finished_work import finished_work
from tests.rl_stages.small_disk import small_disk

SAMPLING = Sampling(8, temperature=0.7, top_p=0.9, top_k=5, stop_token_ids=(3, 4), max_turns=2)
REQUESTS = [Request(f"rl/1/0/task/{i}", (5, 6, 7), SAMPLING, seed=i) for i in range(6)]
VERDICT = Verdict.scored(1 / 3, {"part": 0.1}, "told")


def rollout_of(request: Request, routes_below: int = 200) -> Rollout:
    rng = np.random.default_rng(request.seed)
    return Rollout(
        request.id,
        np.array(request.prompt_ids),
        rng.integers(0, 99, 4),
        rng.standard_normal(4).astype(np.float32),
        rng.integers(0, routes_below, (6, 2, 2)).astype(np.int16),
        ((0, 0), (1, 2)),
        "stop",
        np.array([True, False, True, True]),
        2,
    )


def require_equal(found: Rollout, expected: Rollout) -> None:
    assert type(found) is type(expected)
    for item in fields(expected):
        one, other = getattr(found, item.name), getattr(expected, item.name)
        if isinstance(other, Kept):
            assert np.array_equal(one.ids, other.ids) and np.array_equal(one.counts, other.counts)
            assert one.ids.dtype == one.counts.dtype == np.int32
        elif isinstance(other, np.ndarray):
            assert one.dtype == other.dtype and np.array_equal(one, other)
        else:
            assert one == other


def written(path: Path) -> None:
    with Ledger() as ledger:
        assert ledger.open(path, "w") is None
        for request in REQUESTS[:3]:
            ledger.keep(request, rollout_of(request))
        ledger.judged({REQUESTS[0].id: VERDICT})


def test_every_field_comes_back(tmp_path: Path) -> None:
    plain, wide, episode = rollout_of(REQUESTS[0]), rollout_of(REQUESTS[1], 4000), rollout_of(REQUESTS[2])
    values = {item.name: getattr(episode, item.name) for item in fields(episode)} | {"routes": None}
    episode = EpisodeRollout(**values, verdict=VERDICT)
    wide = replace(wide, passports=(passport_of(wide, REQUESTS[1], cache=1),))
    plain = replace(plain, kept=Kept(np.array([4, 9, 2], np.int32), np.array([2, 0, 1, 0], np.int32)))
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        for request, rollout in zip(REQUESTS, (plain, wide, episode), strict=False):
            ledger.keep(request, rollout)
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        for request, rollout in zip(REQUESTS, (plain, wide, episode), strict=False):
            found = ledger.rollout(request)
            assert found is not None
            require_equal(found, rollout)


def test_samples_of_several_files_are_known_until_their_weights_turn_out_to_be_others(tmp_path: Path) -> None:
    """Those of `written` have a token of weights 1, and one does not."""
    written(tmp_path / "early")
    older = replace(rollout_of(REQUESTS[3]), versions=((0, 0),))
    with Ledger() as ledger:
        ledger.open(tmp_path / "late", "w")
        ledger.keep(REQUESTS[3], older)
    with Ledger(remembers=True) as ledger:
        ledger.recall([tmp_path / "early", tmp_path / "late"])
        ledger.open(tmp_path / "now", "x")
        assert all(ledger.rollout(request) for request in REQUESTS[:4])
        assert ledger.verdicts([REQUESTS[0].id]) == [VERDICT]
        ledger.forget(1)
        assert [request.id for request in REQUESTS if ledger.rollout(request)] == [REQUESTS[3].id]
        assert ledger.verdicts([REQUESTS[0].id]) is None


def test_a_file_of_weights_that_are_gone_goes_on(tmp_path: Path) -> None:
    written(tmp_path / "l")
    with Ledger() as ledger:
        assert ledger.open(tmp_path / "l", None) is None
        assert ledger.rollout(REQUESTS[0]) is not None
        ledger.keep(REQUESTS[4], rollout_of(REQUESTS[4]))
    assert len(read_ledger(tmp_path / "l").rollouts) == 4
    assert read_ledger(tmp_path / "l").weights == "w"


def part_of(request: Request, start: int, *ids: int, version: int = 0) -> Rollout:
    logprobs = -np.array(ids, np.float32)
    routes = np.full((len(ids), 2, 2), ids[0], np.int16)
    prompt = np.array(request.prompt_ids)
    passport = Passport(len(prompt) + start, len(prompt) + start + len(ids), request.seed, 0.7, version, 1, 2, 3)
    return Rollout(request.id, prompt, np.array(ids), logprobs, routes, ((version, 0),), PART, passports=(passport,))


def begun_ids(ledger: Ledger, request: Request, version: int = 9) -> list[int]:
    begun = ledger.begun(request, version)
    return [] if begun is None else begun.token_ids.tolist()


def test_an_unfinished_sample_has_its_parts_until_it_ends(tmp_path: Path) -> None:
    """In their order, over several attempts; and no part of what was asked otherwise."""
    one, other = REQUESTS[:2]
    first, second, third = part_of(one, 0, 1, 2), part_of(one, 2, 3), part_of(one, 3, 4, 5)
    for known, parts in (([], (first, second)), ([1, 2, 3], (third,))):
        with Ledger() as ledger:
            ledger.open(tmp_path / "l", "w")
            assert begun_ids(ledger, one) == known
            for part in parts:
                ledger.keep(one, part)
            ledger.keep(other, part_of(other, 0, 7))
            ledger.keep(one, replace(part_of(one, 0, 8), passports=()))  # it may be of anywhere
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        begun = ledger.begun(one, 0)
        assert begun is not None and ledger.rollout(one) is None
        require_equal(begun, joined([first, second, third]))
        changed = replace(one, seed=9)
        assert begun_ids(ledger, changed) == begun_ids(ledger, REQUESTS[2]) == []
        ledger.keep(changed, part_of(changed, 0, 6))
        ledger.keep(other, rollout_of(other))
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert (begun_ids(ledger, one), begun_ids(ledger, changed), begun_ids(ledger, other)) == ([], [6], [])
        assert ledger.rollout(other) is not None
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "others")
        assert begun_ids(ledger, changed) == []


def test_an_attempt_from_earlier_weights_goes_on_before_the_parts_of_later_ones(tmp_path: Path) -> None:
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        for part in (part_of(REQUESTS[0], 0, 1, 2, version=3), part_of(REQUESTS[0], 2, 3, version=4)):
            ledger.keep(REQUESTS[0], part)
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert [begun_ids(ledger, REQUESTS[0], version) for version in (2, 3, 4)] == [[], [1, 2], [1, 2, 3]]
        ledger.keep(REQUESTS[0], part_of(REQUESTS[0], 2, 5, 6, version=3))
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert begun_ids(ledger, REQUESTS[0]) == [1, 2, 5, 6]


def test_what_an_engine_left_is_taken_up_where_less_is_known(tmp_path: Path) -> None:
    """In the file of its newest weights, behind the parts of an attempt before; no more of what has ended or was asked
    otherwise, and nothing of weights that no attempt has come to."""
    going, ended, asked, further, new, lost = REQUESTS
    with Ledger() as ledger:
        ledger.open(tmp_path / "4", "w")
        ledger.keep(going, part_of(going, 0, 1, 2, version=3))
        ledger.keep(going, part_of(going, 2, 3, version=4))  # told, and left once more
        ledger.keep(ended, rollout_of(ended))
        ledger.keep(replace(asked, seed=9), part_of(asked, 0, 6))
        ledger.keep(further, part_of(further, 0, 1, 2, 3, 4))
    left = [(going, [part_of(going, 2, 3, 4, version=3), part_of(going, 4, 5, version=4)])]
    left += [(each, [part_of(each, 0, 1, 2, 3, version=4)]) for each in (ended, asked, further, new)]
    left += [(lost, [part_of(lost, 0, 1, version=5)])]
    taken = [take_up(left, lambda version: tmp_path / str(version)) for _ in range(2)]  # as after a kill between
    assert taken == [{going.id: 3, new.id: 3}, {}]
    assert not (tmp_path / "5").exists()
    with Ledger() as ledger:
        ledger.open(tmp_path / "4", "w")
        assert begun_ids(ledger, going) == [1, 2, 3, 4, 5]
        assert begun_ids(ledger, going, version=3) == [1, 2, 3, 4]
        assert [begun_ids(ledger, each) for each in (asked, further, new, lost)] == [[], [1, 2, 3, 4], [1, 2, 3], []]
        assert ledger.rollout(ended) is not None


def test_a_part_whose_part_before_is_gone_is_no_use(tmp_path: Path) -> None:
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        for part in (part_of(REQUESTS[0], 0, 1), part_of(REQUESTS[0], 2, 3), part_of(REQUESTS[1], 1, 2)):
            ledger.keep(REQUESTS[0] if part.id == REQUESTS[0].id else REQUESTS[1], part)
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert (begun_ids(ledger, REQUESTS[0]), begun_ids(ledger, REQUESTS[1])) == ([1], [])


@pytest.mark.parametrize("change", [{"seed": 9}, {"prompt_ids": (5, 6)}, {"sampling": Sampling(9)}])
def test_what_was_asked_otherwise_is_drawn_and_judged_again(tmp_path: Path, change: dict) -> None:
    written(tmp_path / "l")
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert ledger.verdicts([REQUESTS[0].id]) == [VERDICT]
        assert ledger.rollout(replace(REQUESTS[0], **change)) is None
        assert ledger.verdicts([REQUESTS[0].id]) is None
        assert ledger.rollout(REQUESTS[3]) is None


def test_samples_of_other_weights_are_told_and_not_used(tmp_path: Path) -> None:
    written(tmp_path / "l")
    with Ledger() as ledger:
        refused = ledger.open(tmp_path / "l", "others")
        assert refused and len(refused.rollouts) == 3
        assert ledger.rollout(REQUESTS[0]) is None
    assert read_ledger(tmp_path / "l").weights == "others"
    assert not list(finished_work(tmp_path / "l"))


def test_a_group_has_its_verdicts_together_or_not_at_all(tmp_path: Path) -> None:
    written(tmp_path / "l")
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert ledger.verdicts([REQUESTS[0].id, REQUESTS[1].id]) is None


def test_infrastructure_failures_are_tried_again(tmp_path: Path) -> None:
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        ledger.keep(REQUESTS[0], replace(rollout_of(REQUESTS[0]), finish="abort"))
        ledger.judged({"a": Verdict.infrastructure_failure("down"), "b": VERDICT})
    contents = read_ledger(tmp_path / "l")
    assert contents.rollouts == {} and contents.verdicts == {"b": VERDICT}
    assert contents.verdicts["b"].outcome is Outcome.COMPLETED


def test_a_file_cut_anywhere_keeps_its_whole_records_and_goes_on(tmp_path: Path) -> None:
    written(tmp_path / "l")
    content, records = (tmp_path / "l").read_bytes(), read_records(tmp_path / "l")
    ends = np.cumsum([append_log.FRAME.size + len(record) for record in records])
    for cut in range(0, len(content) + 1, 7):
        (tmp_path / "cut").write_bytes(content[:cut])
        whole = int((ends <= cut).sum())
        assert read_records(tmp_path / "cut") == records[:whole]
        with Ledger() as ledger:
            ledger.open(tmp_path / "cut", "w")
            ledger.keep(REQUESTS[5], rollout_of(REQUESTS[5]))
        assert len(read_records(tmp_path / "cut")) == max(whole, 1) + 1


def test_a_flipped_bit_ends_the_file(tmp_path: Path) -> None:
    written(tmp_path / "l")
    content, first = bytearray((tmp_path / "l").read_bytes()), read_records(tmp_path / "l")[0]
    content[append_log.FRAME.size * 2 + len(first) + 30] ^= 1
    (tmp_path / "l").write_bytes(bytes(content))
    assert read_records(tmp_path / "l") == [first]


def test_many_appends_share_a_sync_and_all_are_synced(tmp_path: Path) -> None:
    appended, synced = Event(), list[int]()

    def slow(descriptor: int) -> None:
        assert current_thread() is main_thread() or appended.wait(60)
        synced.append((tmp_path / "l").stat().st_size)

    with patch.object(append_log.os, "fsync", slow):
        log = AppendLog(tmp_path / "l", ())
        for _ in range(500):
            log.append(b"x" * 100)
        appended.set()
        log.sync()
        assert synced[-1] == (tmp_path / "l").stat().st_size == 500 * (100 + append_log.FRAME.size)
        assert len(synced) <= 4  # of the folder, of the new file, during which all came, and two after it
        log.close()


def test_a_disk_that_fails_is_told(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "l", ())
    log.sync()
    with patch.object(append_log.os, "fsync", side_effect=OSError("disk")), pytest.raises(OSError, match="disk"):
        log.append(b"x")
        log.sync()


def test_a_full_disk_is_told_with_the_record_that_it_did_not_take(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64):
        log, taken = AppendLog(tmp_path / "disk" / "log", ()), 0
        with pytest.raises(OSError, match="No space left"):
            for _ in range(9):
                log.append(b"x" * 10_000)
                taken += 1
        assert len(read_records(tmp_path / "disk" / "log")) == taken == 6
        log.close()
