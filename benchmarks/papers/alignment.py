"""Align performances with their scores: costs trained end to end, pretrained costs, and random costs.

After Mensch & Blondel 2018, Differentiable Dynamic Programming for Structured Prediction and Attention, §4.3. A
multinomial linear classifier predicts the sounding key of each frame of a performance. Matching a frame with a note
of the score costs minus the log-probability of the note's key. Training reduces the area between the expected path of
a smoothed dynamic time warping and the right path.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

import structinf as si

from .command import Report, run
from .text import lines_of

__all__ = ["main"]

DTW = si.get_oracle("dtw")
TEMPERATURES = 0.3, 1.0

PIECES = {"mozart_k265_var1.match": 2, "test_fuer_elise.match": 8}  # number of segments of each piece
HOP = 512 / 22050  # seconds between frames
CEPSTRAL = 12
WEIGHT_DECAY = 1e-3


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    segments: int | None = None  # for each piece; None: all
    events: int | None = None  # for each segment; None: all
    steps: int = 100


def sizes(quick: bool) -> Sizes:
    return Sizes(segments=2, events=30, steps=40) if quick else Sizes()


# ----------------------------------------------------------------------------- performances


class Note(NamedTuple):
    """A played note: its onset in the score, its MIDI number, and its timing in the performance, in seconds."""

    score: float | None  # in beats; None: not in the score
    key: int
    onset: float
    end: float
    velocity: int


class Segment(NamedTuple):
    """Frames of a performance, and the events (notes and chords) of its score.

    Attributes
    ----------
    features : (frames, D) Tensor
    events : (events, keys) Tensor
        The share of each key in an event: 1 for a note, a third for each key of a chord of three.
    begins : (events,) Tensor
        The first frame of each event, in order; 0 for the first event.
    """

    features: Tensor
    events: Tensor
    begins: Tensor

    def path(self) -> Tensor:
        """The right alignment, (frames, events): the last event begun in each frame."""
        frames = torch.arange(len(self.features))
        path = torch.zeros(len(frames), len(self.events), dtype=torch.float64)
        path[frames, torch.searchsorted(self.begins, frames, right=True) - 1] = 1
        return path

    def head(self, events: int | None) -> Segment:
        """Return the beginning, with at most ``events`` events."""
        if events is None or events >= len(self.events):
            return self
        stop = self.begins[events]
        return Segment(self.features[:stop], self.events[:events], self.begins[:events])


SCORE = r"snote\((?P<id>[^,]*),\[.,.*?\],-?\d+,[^,]*,[^,]*,[^,]*,(?P<score>[-\d.]+),[-\d.]+,\[.*\]\)-"
PLAYED = (
    r"note\([^,]*,\[(?P<step>.),(?P<shift>.*?)\],(?P<octave>-?\d+),(?P<on>\d+),\d+,(?P<end>\d+),(?P<velocity>\d+)\)"
)
MATCHED, INSERTED = re.compile(SCORE + PLAYED), re.compile("insertion-" + PLAYED)
CLOCK = re.compile(r"info\((midiClock\w+),(\d+)\)")


def read(folder: Path, name: str) -> list[Note]:
    """Read the played notes of a match file; the notes of the score come in the order of the score. Repeated lines
    count once.
    """
    notes: dict[str, Note] = {}
    clock: dict[str, int] = {}
    for line in lines_of(folder, name):
        if found := CLOCK.match(line):
            clock[found[1]] = int(found[2])
        if found := MATCHED.match(line) or INSERTED.match(line):
            tick = clock["midiClockRate"] / clock["midiClockUnits"] / 1e6
            key = 12 * (int(found["octave"]) + 1) + "C D EF G A B".index(found["step"])
            key += found["shift"].count("#") - found["shift"].count("b")
            played = key, int(found["on"]) * tick, int(found["end"]) * tick, int(found["velocity"])
            score = found.groupdict().get("score")
            notes[found.groupdict().get("id") or line] = Note(None if score is None else float(score), *played)
    return sorted(notes.values(), key=lambda n: (n.score is None, n.score or 0.0, n.key))


def spectrum(notes: Sequence[Note], times: Tensor) -> Tensor:
    """Return the strengths of the semitones of a simple piano, (times, semitones): decaying notes of six partials,
    and noise.
    """
    onset, end, velocity, key = torch.tensor([(n.onset, n.end, n.velocity, n.key) for n in notes]).double().unbind(1)
    since = times[:, None] - onset
    strength = velocity / 127 * torch.exp(-since / 0.6) * ((since >= 0) & (times[:, None] < end))
    partial = torch.arange(1, 7).double()
    pitch = key[:, None] + 12 * partial.log2()
    semitones = torch.arange(21, 140).double()
    shape = (torch.exp(-2 * (semitones - pitch[..., None]).square()) * 0.6 ** (partial - 1)[:, None]).sum(1)
    return strength @ shape + 1e-3


def describe(spectrum: Tensor) -> Tensor:
    """Return energy, centroid, bandwidth and cepstrum, (times, 3 + CEPSTRAL), each with median 0 and deviation 1."""
    total = spectrum.sum(1)
    share, place = spectrum / total[:, None], torch.arange(spectrum.shape[1]).double()
    centroid = share @ place
    width = (share * (place - centroid[:, None]).square()).sum(1).sqrt()
    waves = torch.cos(torch.pi / len(place) * (place[:, None] + 0.5) * torch.arange(1, CEPSTRAL + 1))
    found = torch.cat([torch.stack([total.log(), centroid, width], 1), spectrum.log() @ waves], 1)
    return (found - found.median(0).values) / found.std(0)


def segments(notes: Sequence[Note], count: int, key_number: Mapping[int, int]) -> list[Segment]:
    """Cut a performance into parts with equal numbers of events, up to a difference of 1."""
    chords: defaultdict[float, list[Note]] = defaultdict(list)
    for note in notes:
        if note.score is not None:
            chords[note.score].append(note)
    events = torch.zeros(len(chords), len(key_number), dtype=torch.float64)
    for event, chord in zip(events, chords.values(), strict=True):
        event[[key_number[note.key] for note in chord]] = 1 / len({note.key for note in chord})
    begins = torch.tensor([int(min(note.onset for note in chord) / HOP) for chord in chords.values()])
    frames = torch.arange(int(begins[-1]) + 40)
    features = describe(spectrum(notes, (frames + 0.5) * HOP))
    cuts = [len(events) * k // count for k in range(count + 1)]
    stops = [*begins[cuts[1:-1]].tolist(), len(frames)]
    return [
        Segment(features[begins[a] : stop], events[a:b], begins[a:b] - begins[a])
        for a, b, stop in zip(cuts, cuts[1:], stops, strict=False)
    ]


# ----------------------------------------------------------------------------- costs


class Batch(NamedTuple):
    """Segments padded to common sizes, their right alignments (B, frames, events), and their sizes, (B, 2)."""

    segments: Sequence[Segment]
    path: Tensor
    lengths: Tensor


def collate(parts: Sequence[Segment]) -> Batch:
    lengths = torch.tensor([(len(s.features), len(s.events)) for s in parts])
    path = torch.zeros(len(parts), *lengths.amax(0).tolist(), dtype=torch.float64)
    for b, segment in enumerate(parts):
        path[b, : len(segment.features), : len(segment.events)] = segment.path()
    return Batch(parts, path, lengths)


Classifier = tuple[Tensor, Tensor]  # weights (D, keys) and offsets (keys,)
Objective = Callable[[Tensor, Batch], Tensor]


def scores(classifier: Classifier, batch: Batch) -> Tensor:
    """Return the log-probabilities of the notes' keys in the frames, (B, frames, events)."""
    weight, offset = classifier
    theta = torch.zeros_like(batch.path)
    for b, (features, events, _) in enumerate(batch.segments):
        theta[b, : len(features), : len(events)] = torch.log_softmax(features @ weight + offset, 1) @ events.T
    return theta


def likelihood(theta: Tensor, batch: Batch) -> Tensor:
    """Return minus the mean log-probability of the keys along the right paths."""
    return -(theta * batch.path).sum() / batch.path.sum()


def area(temperature: float) -> Objective:
    """Return a loss: events between the right path and the expected path, summed over the frames and divided by their
    number.
    """
    smoothed = si.get_relaxation("smoothed", regularizer="negentropy", temperature=temperature)
    loss = si.RelaxedLoss(DTW, smoothed, distance="area", reduction="sum")
    return lambda theta, batch: loss(theta, batch.path, lengths=batch.lengths) / batch.lengths[:, 0].sum()


def learn(objective: Objective, start: Classifier, batch: Batch, steps: int) -> Classifier:
    """Minimize an objective by L-BFGS, with a penalty on the weights."""
    weight, offset = (t.detach().clone().requires_grad_() for t in start)
    optimizer = torch.optim.LBFGS(
        [weight, offset], max_iter=steps, line_search_fn="strong_wolfe", tolerance_change=1e-7, history_size=20
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective(scores((weight, offset), batch), batch) + WEIGHT_DECAY * weight.square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    return weight.detach(), offset.detach()


# ----------------------------------------------------------------------------- errors


class MeanAbsoluteDeviation(NamedTuple):
    """Mean absolute deviations from the right alignment.

    Attributes
    ----------
    path : float
        Deviation of the best path over the frames, in events.
    onsets : float
        Deviation of the best path over the events, in milliseconds.
    expected : float
        Deviation of the median of the expected path in each frame, in events.
    """

    path: float
    onsets: float
    expected: float


def deviation(theta: Tensor, batch: Batch, temperature: float) -> MeanAbsoluteDeviation:
    """Return the mean deviation over the segments."""
    best = si.relax(theta, DTW, "map", lengths=batch.lengths)
    mean = si.relax(theta, DTW, "marginals", temperature=temperature, lengths=batch.lengths)
    of_segments = []
    for segment, hard, soft in zip(batch.segments, best, mean, strict=True):
        frames, events = len(segment.features), len(segment.events)
        right, hard, soft = segment.path(), hard[:frames, :events], soft[:frames, :events]
        median = (soft.cumsum(1) < 0.5 * soft.sum(1, keepdim=True)).sum(1)
        late = (
            last_begun_event(hard) - last_begun_event(right),
            (hard.argmax(0) - right.argmax(0)) * 1000 * HOP,
            median - last_begun_event(right),
        )
        of_segments.append(torch.stack([x.double().abs().mean() for x in late]))
    return MeanAbsoluteDeviation(*torch.stack(of_segments).mean(0).tolist())


def last_begun_event(path: Tensor) -> Tensor:
    """Return the last event begun in or before each frame."""
    return (path * torch.arange(path.shape[1])).amax(1)


def diagonal_scores(batch: Batch) -> Tensor:
    """Return scores with a good path only along the diagonal."""
    theta = torch.zeros_like(batch.path)
    for b, (frames, events) in enumerate(batch.lengths.tolist()):
        places = [torch.linspace(0, 1, n, dtype=torch.float64) for n in (frames, events)]
        theta[b, :frames, :events] = -1e6 * (places[0][:, None] - places[1]).square()
    return theta


# ----------------------------------------------------------------------------- experiment


def evaluate(
    train: Batch, test: Batch, steps: int, seeds: Sequence[int]
) -> Iterator[tuple[str, MeanAbsoluteDeviation, MeanAbsoluteDeviation]]:
    """Yield the methods with their deviations on training and test segments; random scores appear once per seed."""
    sizes = train.segments[0].features.shape[1], train.segments[0].events.shape[1]
    start = torch.zeros(sizes, dtype=torch.float64), torch.zeros(sizes[1], dtype=torch.float64)
    pretrained = learn(likelihood, start, train, steps)

    def both(
        theta: Callable[[Batch], Tensor], temperature: float = 1.0
    ) -> tuple[MeanAbsoluteDeviation, MeanAbsoluteDeviation]:
        return deviation(theta(train), train, temperature), deviation(theta(test), test, temperature)

    for temperature in TEMPERATURES:
        trained = learn(area(temperature), pretrained, train, steps)
        yield f"end to end, γ = {temperature:g}", *both(partial(scores, trained), temperature)
    yield "pretrained", *both(partial(scores, pretrained))
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        yield "random θ", *both(lambda batch, g=generator: torch.randn(batch.path.shape, generator=g).double())
    yield "straight line", *both(diagonal_scores)


def compare(
    folds: Sequence[tuple[Sequence[Segment], Sequence[Segment]]], steps: int, seeds: Sequence[int], report: Report
) -> None:
    """Print a table of the methods' deviations over all folds. A fold is a list of training and a list of test
    segments.
    """
    errors: defaultdict[str, list[tuple[MeanAbsoluteDeviation, MeanAbsoluteDeviation]]] = defaultdict(list)
    for train, test in tqdm(folds, desc="folds", leave=False, disable=None):
        for name, *both in evaluate(collate(train), collate(test), steps, seeds):
            errors[name].append((both[0], both[1]))
    titles = ("best path, {}", "its onsets, {}, ms", "expected path, {}")
    columns = [title.format(part) for title in titles for part in ("train", "test")]
    report.columns({"scores": 19, **dict.fromkeys(columns, 11)})
    for name, found in errors.items():
        report.row(name, *([both[part][unit] for both in found] for unit in range(3) for part in (0, 1)))
    report.line()


def experiment(folder: Path, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Leave out each segment in turn, and then each piece."""
    performances = {name: read(folder, name) for name in PIECES}
    keys = {key: i for i, key in enumerate(sorted({n.key for notes in performances.values() for n in notes}))}
    pieces = [
        [part.head(size.events) for part in segments(performances[name], count, keys)[: size.segments]]
        for name, count in PIECES.items()
    ]
    every = [part for parts in pieces for part in parts]
    frames, events = (sum(map(len, column)) for column in zip(*[(s.features, s.events) for s in every], strict=True))
    report.line(f"{len(every)} segments of {len(pieces)} pieces, {frames} frames, {events} events, {len(keys)} keys\n")
    report.line("Leaving out each segment in turn:\n")
    compare([([*every[:i], *every[i + 1 :]], [every[i]]) for i in range(len(every))], size.steps, seeds, report)
    for train, test in ((1, 0), (0, 1)):
        names = list(PIECES)
        report.line(f"Trained on {names[train]} and tested on {names[test]}:\n")
        compare([(pieces[train], pieces[test])], size.steps, seeds, report)


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=5)


if __name__ == "__main__":
    sys.exit(main())
