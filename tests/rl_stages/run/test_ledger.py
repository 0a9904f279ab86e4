"""What was finished is found again as it was; what was torn, asked otherwise or drawn from other weights is not."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.passport import passport_of
from cascade_rl.engine.core.rollouts import PART, Kept, Outcome, Request, Rollout, Sampling
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run import append_log
from cascade_rl.rl_stages.run.append_log import AppendLog, read_records
from cascade_rl.rl_stages.run.ledger import Ledger, read_ledger
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


def part_of(request: Request, *ids: int) -> Rollout:
    logprobs = -np.array(ids, np.float32)
    routes = np.full((len(ids), 2, 2), ids[0], np.int16)
    return Rollout(request.id, np.array(request.prompt_ids), np.array(ids), logprobs, routes, ((0, 0),), PART)


def test_an_unfinished_sample_has_its_parts_until_it_ends(tmp_path: Path) -> None:
    """In their order, over several attempts; and no part of what was asked otherwise."""
    one, other = REQUESTS[:2]
    for attempt in (0, 1):
        with Ledger() as ledger:
            ledger.open(tmp_path / "l", "w")
            begun = ledger.begun(one)
            assert (begun.token_ids.tolist() if begun else None) == (None, [1, 2, 3])[attempt]
            for ids in ((1, 2), (3,)) if attempt == 0 else ((4, 5),):
                ledger.keep(one, part_of(one, *ids))
                ledger.keep(other, part_of(other, *ids))
            ledger.keep(REQUESTS[2], rollout_of(REQUESTS[2]))
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        begun = ledger.begun(one)
        expected = part_of(one, 1, 2), part_of(one, 3), part_of(one, 4, 5)
        require_equal(begun, joined(expected))
        assert ledger.rollout(one) is None and ledger.begun(REQUESTS[2]) is None
        changed = replace(one, seed=9)
        assert ledger.begun(changed) is None
        ledger.keep(changed, part_of(changed, 6))
        ledger.keep(other, rollout_of(other))
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "w")
        assert ledger.begun(one) is None and ledger.begun(changed).token_ids.tolist() == [6]
        assert ledger.begun(other) is None and ledger.rollout(other) is not None
    with Ledger() as ledger:
        ledger.open(tmp_path / "l", "others")
        assert ledger.begun(changed) is None


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
    gate, synced = ThreadPoolExecutor(1), list[int]()

    def slow(descriptor: int) -> None:
        gate.submit(__import__("time").sleep, 0.02).result()
        synced.append((tmp_path / "l").stat().st_size)

    with patch.object(append_log.os, "fsync", slow):
        log = AppendLog(tmp_path / "l", ())
        for _ in range(500):
            log.append(b"x" * 100)
        log.sync()
        assert synced[-1] == (tmp_path / "l").stat().st_size == 500 * (100 + append_log.FRAME.size)
        assert len(synced) < 50
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
