"""What would spoil a run, found before it begins.

    from bombus.preflight import examine

    for finding in examine(model, "tent", batch_size=64, x=images):
        print(finding.state, finding.text)

Every finding is one sentence with its remedy. note: good to know. warn: the method runs, but its
result will mislead. bad: it cannot work. `bombus run` does this by itself, `bombus doctor --model`
without running.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bombus import gate
from bombus.backbones.blocks import Backbone
from bombus.backbones.input import Input
from bombus.errors import ConfigError, InputError
from bombus.finding import Finding
from bombus.methods import find_method
from bombus.methods._norm import batch_norms
from bombus.methods.base import Adapter, BaseConfig
from bombus.methods.bn import BatchNorm1
from bombus.methods.cotta import Cotta
from bombus.methods.source import SourceOnly
from bombus.normalisation import Fit, applied_by, better_way, in_words, measure, same, usual_for

IMAGES = 32  # that the model is asked about: enough to tell, and cheap
# The shortest batch of the published protocol: 5,000 images in batches of 64 leave 8.
FEWEST_FOR_STATISTICS = 8


def examine(
    model: nn.Module,
    method: str | type[Adapter],
    config: BaseConfig | None = None,
    *,
    batch_size: int | None = None,
    x: Tensor | None = None,
    input: Input | None = None,
    on_purpose: str | None = None,
) -> list[Finding]:
    """Everything worth saying before `method` adapts `model`; nothing if all is well.

    Args:
        model: the classifier, as it would be given to `bombus.adapt`; it is not changed.
        method: its name or class.
        config: its settings; the defaults if left out.
        batch_size: of the batches to come.
        x: some of their images, 32 or so: the model is then asked about them.
        input: what the model expects, where it does not say so itself.
        on_purpose: why the images enter otherwise than is usual for such a network ("as its
            weights ask for"), where that is meant.
    """
    chosen = find_method(method) if isinstance(method, str) else method
    settings = config or chosen.Config()
    findings = [*_parameters(model, chosen)]
    if any(finding.state == "bad" for finding in findings):
        return findings
    findings += [*_mode(model), *_statistics(model, chosen, settings, batch_size)]
    fit, images, asked = None, None, model
    if x is not None:
        if any(module.training for module in model.modules()):
            asked = deepcopy(model).eval()  # it would learn from being asked
        try:
            images = _usable(model, x, input)
            fit = measure(asked, images, applied_by(model))
        except (ConfigError, InputError) as error:
            return [*findings, Finding("bad", str(error))]
        if not math.isfinite(fit.information):
            return [*findings, _not_finite(model)]
    findings += _normalisation(asked, images, fit, on_purpose)
    classes = fit.classes if fit is not None else getattr(model, "num_classes", None)
    return [*findings, *_filters(chosen, settings, classes)]


# --- the model -------------------------------------------------------------------------------


def _parameters(model: nn.Module, method: type[Adapter]) -> Iterator[Finding]:
    quantised = [m for m in model.modules() if ".nn.quantized" in type(m).__module__]
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    if quantised or not parameters:
        what = "quantised layers" if quantised else "no float parameters"
        yield Finding(
            "bad",
            f"{_name(model)} has {what}, which cannot be adapted; give the float model from "
            "before its conversion.",
        )
        return
    if not method.stateful:
        return  # it learns nothing
    # Measured with tent on the tiny networks of the tests: float16 is NaN after a few of Adam's
    # steps, and of bfloat16's values half have not moved after five.
    harms = {torch.float16: "Adam's steps overflow", torch.bfloat16: "small steps round to none"}
    for dtype in harms.keys() & {p.dtype for p in parameters}:
        yield Finding(
            "bad" if dtype is torch.float16 else "warn",
            f"{_name(model)} has {str(dtype).removeprefix('torch.')} weights, in which "
            f"{harms[dtype]}; give model.float(), and for speed adapt within torch.autocast "
            "(on the command line --precision bf16).",
        )
    if frozen := sum(not p.requires_grad for p in parameters):
        yield Finding(
            "note",
            f"{frozen} of {len(parameters)} parameters came with requires_grad=False, which makes "
            f"no difference: {method.name} works on a copy and trains there what it always trains.",
        )


def _mode(model: nn.Module) -> Iterator[Finding]:
    active = [m for m in model.modules() if m.training and _drops(m)]
    if active:
        kinds = " and ".join(sorted({type(m).__name__ for m in active}))
        yield Finding(
            "note",
            f"{_name(model)} was in training mode with {len(active)} active {kinds}; bombus uses "
            "evaluation mode, in which nothing is dropped, so there is nothing to do.",
        )


def _drops(module: nn.Module) -> bool:
    name = type(module).__name__
    if "Dropout" not in name and name not in ("DropPath", "StochasticDepth", "DropBlock2d"):
        return False
    rate: Any = getattr(module, "p", getattr(module, "drop_prob", 0.0))
    return bool(rate)


def _statistics(
    model: nn.Module, method: type[Adapter], config: BaseConfig, batch_size: int | None
) -> Iterator[Finding]:
    norms, name = batch_norms(model), method.name
    if unkept := sum(norm.running_mean is None for norm in norms):
        yield Finding(
            "warn",
            f"{unkept} BatchNorm layers keep no running statistics, so that even the source "
            "model's answers depend on the batch and a lone image has nothing to fall back on; "
            "train with track_running_stats=True, or compare no method with source.",
        )
    # All methods but the source model take them from the batch, unless their settings say no.
    by_batch = getattr(config, "statistics", "batch") == "batch"
    if issubclass(method, SourceOnly) or not by_batch:
        return
    strange = [
        m for m in model.modules() if "running_mean" in m._buffers and not isinstance(m, _NormBase)
    ]
    if strange:
        yield Finding(
            "warn",
            f"{len(strange)} layers of {_name(model)} ({type(strange[0]).__name__}) keep running "
            f"statistics without being nn.BatchNorm, so {name} can neither renew those nor train "
            "their scale and shift; replace them by nn.BatchNorm2d of the same values.",
        )
    elif issubclass(method, BatchNorm1) and not norms:
        yield Finding(
            "warn",
            f"{name} renews BatchNorm's statistics and {_name(model)} has no BatchNorm, so its "
            "answers are the source model's; choose a method that trains, such as tent.",
        )
    if norms and batch_size == 1:
        yield Finding(
            "warn",
            f"One image makes no batch statistics: in batches of 1 {name} answers with those of "
            f"training and learns nothing; use batches of {FEWEST_FOR_STATISTICS} or more, or a "
            "network with LayerNorm or GroupNorm.",
        )
    elif norms and batch_size is not None and batch_size < FEWEST_FOR_STATISTICS:
        yield Finding(
            "warn",
            f"Batches of {batch_size} make poor BatchNorm statistics, on which {name} rests; use "
            f"{FEWEST_FOR_STATISTICS} or more (published: 64 to 200).",
        )


# --- the images ------------------------------------------------------------------------------


def _usable(model: nn.Module, x: Tensor, input: Input | None) -> Tensor:
    expected = input or gate.input_of(model)
    kept = gate.check(x, expected, like=next(model.parameters())).kept
    if not kept:
        raise InputError(
            f"None of the {len(x)} images is usable (NaN, or outside [{expected.low:g}, "
            f"{expected.high:g}]); look at what the loader gives."
        )
    return x[kept[:IMAGES]].detach()


def _normalisation(
    model: nn.Module, images: Tensor | None, fit: Fit | None, on_purpose: str | None
) -> Iterator[Finding]:
    own, usual = applied_by(model), usual_for(model)
    here = f"{_name(model)} is fed images {in_words(own)}"
    if usual is not None and not same(own, usual):
        if on_purpose is not None:
            yield Finding(
                "note",
                f"{here} {on_purpose}, where such networks are trained {in_words(usual)}; "
                "compare with results of the same kind alone.",
            )
            return
        if images is None or fit is None or not fit.better_than(measure(model, images, usual)):
            yield Finding(
                "warn",
                f"{here}, where such networks are trained {in_words(usual)}; "
                f"{_remedy(model, usual)}, unless these weights were trained otherwise.",
            )
            return
    better = None if images is None or fit is None else better_way(model, images, fit)
    if better is not None and fit is not None:
        yield Finding(
            "warn",
            f"{here}, and probably was trained {in_words(better.input)}: so fed, its answers to "
            f"the first images tell {better.told:.0%} of what they could, not {fit.told:.0%}; "
            f"{_remedy(model, better.input)}.",
        )


def _remedy(model: nn.Module, way: Input) -> str:
    if isinstance(model, Backbone):
        return (
            "set it in model.input, with bombus.Input(...), and keep it in the weights' file with "
            "save_weights"
        )
    if way.mean is None:
        return "leave out the normalisation inside it"
    return "put that normalisation in front of it, as the first layer of an nn.Sequential"


def _not_finite(model: nn.Module) -> Finding:
    return Finding(
        "bad",
        f"{_name(model)} answers the first images with NaN or infinity; check its weights, and "
        "the range of the images.",
    )


# --- the settings ----------------------------------------------------------------------------


def _filters(method: type[Adapter], config: Any, classes: int | None) -> Iterator[Finding]:
    """Thresholds that let everything pass, or nothing, with so many classes."""
    margin = getattr(config, "margin", None)
    nats = math.log(classes) if classes is not None and classes > 1 else None
    if margin is not None and not 0 < margin <= 1:
        scale = "ln(classes)" if nats is None else f"ln({classes}) = {nats:.2f}"
        effect = "no answer is ever reliable" if margin <= 0 else "every answer is reliable"
        yield Finding(
            "warn",
            f"margin={margin:.3g} is a part of {scale}, the entropy of guessing, so {effect}; give "
            "a number between 0 and 1, such as 0.4.",
        )
    if nats is None or classes is None:
        return
    floor = getattr(config, "floor", None)
    if floor is not None and margin is not None and floor >= margin * nats > 0:
        yield Finding(
            "warn",
            f"floor={floor:g} is not below the margin of {margin * nats:.2f} nats that {classes} "
            f"classes give, so {method.name} returns to the source after every step; give a floor "
            f"below, such as {0.07 * nats:.2g}.",
        )
    redundancy = getattr(config, "redundancy", None)
    # A sure answer has a cosine of 1 / sqrt(C) to an even mean, and the published values (0.4, 0.1,
    # 0.05 for 10, 100, 1,000 classes) are at it or above.
    even = classes**-0.5
    if redundancy is not None and redundancy < 0.5 * even:
        yield Finding(
            "warn",
            f"redundancy={redundancy:g} is for many more than {classes} classes: a sure answer has "
            f"a cosine of {even:.2f} to an even mean, so hardly any is new; give {even:.2f} or "
            "more.",
        )
    if issubclass(method, Cotta) and config.threshold <= 1 / classes:
        yield Finding(
            "warn",
            f"threshold={config.threshold:g} is for more than {classes} classes: no confidence is "
            f"below {1 / classes:g}, so {method.name} never averages over views; give the "
            "confidence that the source model has on clean images, such as 0.9.",
        )


def _name(model: nn.Module) -> str:
    name = getattr(model, "name", None)
    return name if isinstance(name, str) and name else type(model).__name__
