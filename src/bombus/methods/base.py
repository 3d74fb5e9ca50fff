"""The contract every method obeys.

    adapter = Tent(model)          # works on its own copy; the model given is never touched
    logits = adapter(x)            # adapts to x and predicts it, in the order the paper says
    logits = adapter.predict(x)    # predicts, changes nothing
    adapter.reset()                # as if it had never seen anything
    adapter.save(folder); Tent.load(folder, model)

A method implements `setup`, `step` and `forward`, names in `stateful` the attributes that change
over time, and gets all of the above, the input gate and exact save/resume from here.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from bombus import gate
from bombus.backbones.blocks import Backbone
from bombus.backbones.input import Input
from bombus.backbones.weights import state_sha256
from bombus.data.augment import View
from bombus.errors import CheckpointError, ConfigError
from bombus.methods import _saved, _state
from bombus.methods._caution import Cautions, long_steps
from bombus.methods._config import BaseConfig as BaseConfig
from bombus.methods._network import (
    bare,
    checked,
    own_copy,
    require_transformer,
    try_out,
    uncached_autocast,
)
from bombus.methods._norm import batch_norms
from bombus.methods._object import AdapterObject
from bombus.methods._report import Report as Report
from bombus.methods._source import gated_source

Access = Literal["none", "statistics", "samples", "labels"]
Source = Iterable[Any]  # batches of x, or of (x, y) where a method declares that it needs labels


class Adapter(AdapterObject, ABC):
    name: ClassVar[str]  # set by @register
    Config: ClassVar[type[BaseConfig]] = BaseConfig
    needs: ClassVar[Access] = "none"
    predicts: ClassVar[Literal["before update", "after update"]] = "before update"
    source_optional: ClassVar[bool] = False  # there is a documented way without source data
    reads_files: ClassVar[bool] = False  # source= may also be a file that `bombus warmup` made
    cheap: ClassVar[bool] = True  # cheap enough for the demo on two cores
    transformers_only: ClassVar[bool] = False  # refuses other networks than vision transformers
    stateful: ClassVar[tuple[str, ...]] = ("model",)
    prepared: ClassVar[tuple[str, ...]] = ()  # what `prepare` makes and no batch changes

    def __init__(
        self,
        model: nn.Module,
        config: BaseConfig | None = None,
        *,
        source: Source | None = None,
        input: Input | None = None,
        state: Any = None,
    ) -> None:
        if config is not None and not isinstance(config, self.Config):
            raise ConfigError(
                f"Got a {type(config).__qualname__} for {self.name}, expected "
                f"{self.Config.__qualname__} of {self.Config.__module__}; or give settings to "
                "bombus.adapt by name, as in lr=1e-4."
            )
        model = bare(model)
        gate.require_fit(model, input)
        if self.transformers_only:
            require_transformer(model, self.name)
        self.config: Any = config or self.Config.for_network(model)
        self.input = input or gate.input_of(model)
        self.source_sha256 = state_sha256(model)
        self.generator = torch.Generator().manual_seed(self.config.seed)
        self._newest = Report()
        self._own = threading.local()
        self._cautions = Cautions(self.name)
        self._events: list[dict[str, Any]] = []
        self._early_events: list[dict[str, Any]] = []  # of `prepare`, for the first report
        self._signals: dict[str, float] = {}
        self._phases: dict[str, float] = {}
        self._classes: int | None = model.num_classes if isinstance(model, Backbone) else None
        self._lock = threading.RLock()
        self._tried: set[tuple[int, ...]] = set()  # shapes of images that the network takes
        self.source_bytes: int | None = None  # of source images read in `prepare`; None: no source
        with torch.inference_mode(False), torch.enable_grad():
            self.model = own_copy(model)
            # Of one image BatchNorm has no batch statistics: it is answered, and not learnt from.
            self.alone_is_too_few = False
            self.setup()
            self.alone_is_too_few |= any(norm.training for norm in batch_norms(self.model))
            if state is None:
                if self.needs != "none" and not self.source_optional:
                    self._require_source(source)
                self._prepare(source if self.needs != "none" else None)
                if found := long_steps(self.model, getattr(self, "optimizer", None)):
                    self.event("long steps", **found)
                self._early_events = self._events
                self._newest = Report(events=tuple(self._events))
                self._cautions.of_events(self._events)
            else:  # as read from a file, on the CPU; `fresh` first, to lie where `reset` wants it
                self._fill(self._placed(state["prepared"]))
                self.load_state_dict(self._placed(state["fresh"]))
            self._fresh = _state.clone(self._live())
            if state is not None:
                self.load_state_dict(self._placed(state["now"]))

    # What a method writes

    def setup(self) -> None:  # nothing to do is a fine answer
        """Configure the own copy of the model; build optimiser, teacher, queues."""

    def prepare(self, source: Source | None) -> None:
        """Learn from source data before the first batch. Not called when resuming."""

    @abstractmethod
    def step(self, x: Tensor) -> Tensor:
        """Adapt to x (N > 0 clean samples) and return its logits."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The logits of x as the model stands; called without gradients; changes nothing."""

    def answer(self, x: Tensor) -> Tensor:
        """`forward` without gradients, for steps that do not train."""
        with torch.no_grad():
            return self.forward(x)

    def view(self, augmentation: View, x: Tensor) -> Tensor:
        """An augmented x: augmentations take [0, 1], whatever range the network takes."""
        low, span = self.input.low, self.input.high - self.input.low
        if (low, span) == (0, 1):
            return augmentation(x, self.generator)
        return low + span * augmentation((x - low) / span, self.generator)

    def event(self, kind: str, **facts: Any) -> None:
        self._events.append({"event": kind, **facts})

    def step_dropped(self, **facts: Any) -> None:
        self.event("step dropped", **facts, reason="the gradient is not finite")

    def signal(self, **values: float) -> None:
        self._signals.update(values)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step. Approximate on a GPU, whose queue is not emptied for it."""
        start = time.perf_counter()
        yield
        spent = 1000 * (time.perf_counter() - start)
        self._phases[name] = round(self._phases.get(name, 0.0) + spent, 3)

    # What a user calls

    def __repr__(self) -> str:
        sizes = [(p.numel(), p.requires_grad) for p in self.model.parameters()]
        adapting, total = sum(n for n, own in sizes if own), sum(n for n, _ in sizes)
        network = type(self.model).__name__
        return f"<{self.name}: {adapting:,} of {total:,} parameters of {network} adapt>"

    @property
    def last(self) -> Report:
        """Of this thread's own last call; in a thread that made none, of the newest."""
        own: Report = getattr(self._own, "report", self._newest)
        return own

    def __call__(self, x: Tensor) -> Tensor:
        gated = gate.check(x, self.input, like=self._parameter())
        with self._lock, uncached_autocast(), torch.inference_mode(False), torch.enable_grad():
            clean = gate.clean(x, gated)
            self._try_out(clean)
            self._events, self._signals, self._phases = [*self._early_events], {}, {}
            alone = len(clean) == 1 and self.alone_is_too_few
            answer = self.answer if alone else self.step
            logits = checked(answer(clean), len(clean), type(self)) if len(clean) else None
            if logits is not None and logits.shape[1] == 1:
                self._cautions.of_one_class()
            self._report(gated, alone)
            self._early_events = []  # now that they were told: a call that fails tells nothing
            return self._scatter(logits, gated, x)

    def predict(self, x: Tensor) -> Tensor:
        gated = gate.check(x, self.input, like=self._parameter())
        with self._lock, uncached_autocast(), torch.inference_mode(False):
            clean = gate.clean(x, gated)
            self._try_out(clean)
            logits = self.answer(clean) if len(clean) else None
            return self._scatter(logits, gated, x)

    def reset(self) -> None:
        self.load_state_dict(self._fresh)

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that changes; frozen parameters are the source model's and stay out."""
        with self._lock, torch.inference_mode(False):
            state: dict[str, Any] = _state.clone(self._live())
            return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = {*self.stateful, "generator"} ^ set(state)
        if missing:
            raise CheckpointError(
                f"This state does not belong to {self.name}: it differs in {sorted(missing)}."
            )
        with self._lock:
            self._fill(state)

    def save(self, folder: str | Path, **notes: int | str) -> None:
        """Store everything, crash-safe; `notes` go into the header beside it."""
        with self._lock:
            parts = {
                "prepared": self._packed(self.prepared),
                "fresh": self._fresh,
                "now": self._live(),
            }
            _saved.write(self, parts, Path(folder), notes)

    @classmethod
    def load(cls, folder: str | Path, model: nn.Module, *, input: Input | None = None) -> Self:
        """Resume a saved adapter, given the source model it was made from."""
        return _saved.read(cls, Path(folder), model, input)

    # Inside

    def _prepare(self, source: Source | None) -> None:
        if isinstance(source, str | Path) and not self.reads_files:
            raise ConfigError(
                f"Got the file {source} as source of {self.name}, which reads images; pass "
                "source=loader (batches of images), or --source FOLDER on the command line."
            )
        if source is None or isinstance(source, str | Path):
            self.prepare(source)
            return
        labelled = self.needs == "labels"
        reading = gated_source(
            source, self.input, like=self._parameter(), labelled=labelled, try_out=self._try_out
        )
        self.prepare(reading)
        if reading.rejected:
            images, reason = len(reading.rejected), reading.rejected[0]
            self.event("source images set aside", images=images, reason=reason)
        self.source_bytes = max(reading.bytes, self.source_bytes or 0)

    def _report(self, gated: gate.Gated, alone: bool) -> None:
        self._cautions.of_events(self._events)
        for position, reason in gated.rejected.items():
            self.event("rejected", sample=position, reason=reason)
        self._cautions.of_rejected(gated.rejected, gated.samples)
        if alone:
            self._cautions.of_one_alone()
        events = tuple(self._events)
        report = Report(gated.samples, gated.rejected, events, self._signals, self._phases)
        self._newest = self._own.report = report

    def _try_out(self, x: Tensor) -> None:
        """Let the network refuse images of a new shape before any of them is remembered."""
        shape = tuple(x.shape[1:])
        if len(x) and shape not in self._tried:
            try_out(self.model, x[:2].to(self._parameter().device))
            self._tried.add(shape)

    def _live(self) -> dict[str, Any]:
        """All that changes over time, itself: it goes on changing."""
        return self._packed((*self.stateful, "generator"))

    def _placed(self, state: Mapping[str, Any]) -> dict[str, Any]:
        device = self._parameter().device
        return {k: _state.placed(v, getattr(self, k, None), device) for k, v in state.items()}

    def _packed(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: _state.pack(getattr(self, name)) for name in names}

    def _fill(self, state: Mapping[str, Any]) -> None:
        # Out of inference mode: a tensor made in it could never be learnt from again.
        with torch.inference_mode(False), torch.no_grad():
            for name, packed in state.items():
                # A clone: two adapters given the same state must not come to share it.
                own = _state.unpack(_state.clone(packed), getattr(self, name), name)
                setattr(self, name, own)

    def _parameter(self) -> Tensor:
        return next(self.model.parameters())

    def _require_source(self, source: Source | None) -> None:
        if source is None:
            raise ConfigError(
                f"{self.name} needs source {self.needs}; pass source=loader (batches of "
                f"{'(images, labels)' if self.needs == 'labels' else 'images'}), or --source "
                "FOLDER on the command line."
            )

    def _scatter(self, logits: Tensor | None, gated: gate.Gated, x: Tensor) -> Tensor:
        if logits is not None:
            self._classes = logits.shape[1]
            if not gated.rejected:
                return logits
        return gate.scatter(logits, gated, self._count_classes(x), x)

    def _count_classes(self, x: Tensor) -> int:
        if self._classes is None:  # nothing answered yet: ask the network about a blank image
            blank = torch.zeros(2, *x.shape[1:], dtype=x.dtype, device=x.device)
            self._classes = int(self.answer(blank).shape[1])
        return self._classes
