"""Records the samples of each weight version and their verdicts, so that no finished work is done twice.

    ledger/version_00003   records, each with a checksum, appended as samples and verdicts come
        first   the digest of the weights
        then    samples, each with its seed and sampling settings, and verdicts by sample id
                which groups a step learned from, if `rollout.batch_order` left that to time
                parts of samples that are still being drawn, now and then (`rollout.part_every_s`)

A killed stage reaches the same weights again from its checkpoint and finds the file that it had begun. What is in it is
neither sampled nor judged again. An unfinished sample goes on from its parts, also from those that its engine left when
it lost the trainer (`take_up`). A file of other weights is not used: its samples are not from this policy.
Infrastructure failures are not recorded, so a new attempt tries them again.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import takewhile
from pathlib import Path
from struct import Struct
from threading import RLock
from typing import Any, Self

import numpy as np

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.rollouts import PART, Kept, Outcome, Passport, Request, Rollout, Sampling
from cascade_rl.engine.core.routes import narrowed
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run.append_log import AppendLog, read_records

HEAD = Struct("<I")  # size of a record's JSON in bytes; the arrays follow


@dataclass
class Contents:
    """The contents of one file. `weights` is the digest; None if there is no file. `parts` are those of samples that
    have not ended, each with its request. `groups` are those that a step learned from, by step: each is
    the step that asked for it, and its place there."""

    weights: str | None = None
    requests: dict[str, Request] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    parts: dict[str, tuple[Request, list[Rollout]]] = field(default_factory=dict)
    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def with_those_of(self, other: "Contents") -> "Contents":
        """Both, of the other's weights."""
        requests, rollouts = self.requests | other.requests, self.rollouts | other.rollouts
        both = Contents(
            other.weights, requests, rollouts, self.verdicts | other.verdicts, groups=self.groups | other.groups
        )
        for request, parts in [*self.parts.values(), *other.parts.values()]:
            for part in parts if request.id not in rollouts else ():
                both.follow(request, part)
        return both

    def follow(self, request: Request, part: Rollout) -> None:
        """Adds a part after those of its request that begin before it: an attempt may have gone on from an earlier
        one."""
        asked, parts = self.parts.get(request.id, (None, []))
        start = part.passports[0].start
        before = [one for one in parts if asked == request and one.passports[0].start < start]
        self.parts[request.id] = request, [*before, part]


class Ledger:
    """The file of one version at a time, on rank 0. A context manager. Any thread may call `keep` and `judged`.

    remembers  what earlier files had is still known, since samples of several files are drawn at a time
    """

    def __init__(self, *, remembers: bool = False) -> None:
        self._remembers = remembers
        self._contents = Contents()
        self._path = Path()
        self._log: AppendLog | None = None
        self._lock = RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log:
            self._log.close()
        self._log = None

    def open(self, path: Path, weights: str | None) -> Contents | None:
        """Continues the file, or begins it. If the file is of other weights, drops its contents and returns them.

        None: of whichever weights the file is, since they are gone."""
        records = read_records(path)
        found = _read(records)
        same = found.weights is not None and weights in (None, found.weights)
        opened = found if same else Contents(weights)
        with self._lock:
            self.__exit__()
            self._path, self._contents = path, self._contents.with_those_of(opened) if self._remembers else opened
            self._log = AppendLog(path, records if same else ())
            if not same:
                self._write({"weights": weights})
        return found if found.weights and not same else None

    def recall(self, paths: Iterable[Path]) -> None:
        """Takes up what other files have, whatever their weights."""
        for path in paths:
            self._contents = self._contents.with_those_of(read_ledger(path))

    def forget(self, version: int) -> None:
        """Drops the samples that have tokens of weights `version`, or of later ones, and what was learned from them on:
        they were others."""
        rollouts = {name: rollout for name, rollout in self._contents.rollouts.items() if rollout.newest < version}
        requests = {name: request for name, request in self._contents.requests.items() if name in rollouts}
        parts = {
            name: (request, [part for part in told if part.newest < version])
            for name, (request, told) in self._contents.parts.items()
        }
        groups = {step: chosen for step, chosen in self._contents.groups.items() if step < version}
        self._contents = replace(self._contents, rollouts=rollouts, requests=requests, parts=parts, groups=groups)

    def rollout(self, request: Request) -> Rollout | None:
        """The sample recorded for an identical request; None otherwise, and then its verdict is dropped too."""
        if self._contents.requests.get(request.id) == request:
            return self._contents.rollouts[request.id]
        self._contents.verdicts.pop(request.id, None)
        return None

    def begun(self, request: Request, version: int) -> Rollout | None:
        """What was recorded of an identical request's sample, which has not ended, up to weights `version`."""
        asked, parts = self._contents.parts.get(request.id, (None, ()))
        known = list(takewhile(lambda part: part.newest <= version, _linked(parts, len(request.prompt_ids))))
        return joined(known) if known and asked == request else None

    def lacks(self, request: Request, part: Rollout) -> bool:
        """Whether nothing that is recorded of an unfinished sample reaches as far as this part. False for another turn
        than that which is recorded."""
        asked, parts = self._contents.parts.get(request.id, (request, ()))
        known = max((one.passports[0].end for one in parts), default=0)
        return request.id not in self._contents.rollouts and asked == request and part.passports[0].end > known

    def keep(self, request: Request, rollout: Rollout) -> None:
        """Records a finished sample, or a part of one, if its passport says where it begins."""
        if rollout.finish != "abort" and (rollout.finish != PART or rollout.passports):
            self._write({"seed": request.seed, "sampling": asdict(request.sampling)} | _plain(rollout))

    def verdicts(self, sample_ids: Iterable[str]) -> list[Verdict] | None:
        """The verdicts of these samples; None unless every sample has one."""
        found = [self._contents.verdicts.get(sample_id) for sample_id in sample_ids]
        return [verdict for verdict in found if verdict] if all(found) else None

    def judged(self, verdicts: Mapping[str, Verdict]) -> None:
        """Records verdicts by sample id in one record: all of them or none."""
        kept = {name: v for name, v in verdicts.items() if v.outcome is not Outcome.INFRASTRUCTURE_FAILURE}
        if kept:
            self._write({"verdicts": {name: asdict(verdict) for name, verdict in kept.items()}})

    def groups(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """By step, the groups that it learned from, as they were recorded."""
        return self._contents.groups

    def learned(self, step: int, groups: Sequence[tuple[int, int]]) -> None:
        """Records which groups a step learns from, before it does."""
        if step not in self._contents.groups:
            self._write({"step": step, "groups": groups})

    def sync(self) -> None:
        """Returns when everything is on disk. Raises OSError if that fails."""
        if self._log:
            self._log.sync()

    def discard(self) -> None:
        """Removes the open file, because its samples are wrong."""
        self.__exit__()
        self._path.unlink(missing_ok=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        packed = _packed(record)
        with self._lock:
            assert self._log
            self._log.append(packed)


def take_up(left: Iterable[tuple[Request, Sequence[Rollout]]], path_of: Callable[[int], Path]) -> Counter[str]:
    """Records the parts that engines have left of unfinished samples, in the file of their newest weights, where that
    has less of them. Returns how many tokens it has taken up, by sample."""
    taken, ledgers = Counter[str](), dict[int, Ledger]()
    with ExitStack() as exits:
        for request, parts in left:
            version = parts[-1].newest
            if version not in ledgers and path_of(version).exists():
                ledgers[version] = exits.enter_context(Ledger())
                ledgers[version].open(path_of(version), None)
            if version in ledgers and ledgers[version].lacks(request, parts[-1]):
                for part in parts:
                    ledgers[version].keep(request, part)
                    taken[request.id] += len(part.token_ids)
    return taken


def read_ledger(path: Path) -> Contents:
    """The contents of the file."""
    return _read(read_records(path))


def _linked(parts: Iterable[Rollout], end: int) -> Iterator[Rollout]:
    """The parts that follow one another, the first after place `end`: one before them may be gone with its weights."""
    for part in parts:
        if part.passports[0].start != end:
            return
        yield part
        end = part.passports[0].end


def _read(records: list[bytes]) -> Contents:
    contents = Contents()
    for record in map(_unpacked, records):
        if "weights" in record:
            contents.weights = record["weights"]
        elif "groups" in record:
            contents.groups[record["step"]] = [(begun, place) for begun, place in record["groups"]]
        elif "verdicts" in record:
            contents.verdicts |= {name: _verdict(plain) for name, plain in record["verdicts"].items()}
        else:
            _add(contents, record)
    return contents


def _add(contents: Contents, record: Mapping[str, Any]) -> None:
    rollout = _rollout(record)
    request = _request(record, rollout)
    if rollout.finish == PART:
        contents.follow(request, rollout)
    else:
        contents.parts.pop(rollout.id, None)
        contents.rollouts[rollout.id], contents.requests[rollout.id] = rollout, request


def _plain(rollout: Rollout) -> dict[str, Any]:
    values = {item.name: getattr(rollout, item.name) for item in fields(rollout)}
    if isinstance(rollout, EpisodeRollout):
        values["verdict"] = asdict(rollout.verdict)
    values["passports"] = [asdict(passport) for passport in rollout.passports]
    if kept := values.pop("kept"):
        values |= {"kept_ids": kept.ids, "kept_counts": kept.counts}
    if rollout.routes is not None:
        values["routes"] = narrowed(rollout.routes)
    return values


def _rollout(record: Mapping[str, Any]) -> Rollout:
    values = {item.name: record[item.name] for item in fields(Rollout) if item.name not in ("kept", "passports")}
    values["passports"] = tuple(Passport(**plain) for plain in record.get("passports", ()))  # older files have none
    if "kept_ids" in record:
        values["kept"] = Kept(record["kept_ids"], record["kept_counts"])
    values["versions"] = tuple((version, start) for version, start in record["versions"])
    if values["routes"] is not None:
        values["routes"] = values["routes"].astype(np.int16)
    return EpisodeRollout(**values, verdict=_verdict(record["verdict"])) if "verdict" in record else Rollout(**values)


def _request(record: Mapping[str, Any], rollout: Rollout) -> Request:
    settings = record["sampling"]
    sampling = Sampling(**settings | {"stop_token_ids": tuple(settings["stop_token_ids"])})
    return Request(rollout.id, tuple(rollout.prompt_ids.tolist()), sampling, record["seed"])


def _verdict(plain: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**plain, "outcome": Outcome(plain["outcome"])})


def _packed(record: Mapping[str, Any]) -> bytes:
    """The length of the JSON, the JSON with dtype and shape of each array, and the arrays in the same order."""
    arrays = {name: value for name, value in record.items() if isinstance(value, np.ndarray)}
    shapes = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    plain = {name: value for name, value in record.items() if name not in arrays}
    head = json.dumps({"plain": plain, "arrays": shapes}, default=float).encode()
    return b"".join([HEAD.pack(len(head)), head, *(array.tobytes() for array in arrays.values())])


def _unpacked(record: bytes) -> dict[str, Any]:
    (length,) = HEAD.unpack_from(record)
    at = HEAD.size + length
    head = json.loads(record[HEAD.size : at])
    values: dict[str, Any] = head["plain"]
    for name, (dtype, shape) in head["arrays"].items():
        array = np.frombuffer(record, dtype, int(np.prod(shape)), at).reshape(shape).copy()
        values[name], at = array, at + array.nbytes
    return values
