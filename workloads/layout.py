"""The DDP buckets of somebody's own model, built on torch's meta device: no memory, no GPU, no process group.

A factory is ``module:function``. What it returns is the model, or the model and example inputs: then one backward is run, on
meta too, and the order in which gradients come is the real one and not assumed.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from ddpprof.errors import DdpprofError, InputError, UsageError
from ddpprof.reducer import Hold, Layout, Mode, Parameter, capacity, holds, initial, rebuilt

OrderSource = Literal["traced", "given", "reverse"]

_TRACEBACK = "The traceback: ddpprof -v layout ..."
_META = f"It is called without arguments, on torch's meta device, where tensors have no values. {_TRACEBACK}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLayout:
    """The buckets under one cap (None: DDP's default), and which gradients hold the queue in the layout that lasts.

    ``rebuilt`` is None when the first layout lasts (find_unused), or when there is no second step (plain, with unused ones).
    """

    cap_mb: float | None
    initial: Layout
    rebuilt: Layout | None
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayout:
    """The layouts of one model. ``ready`` and ``unused`` are parameter indices, ``order`` is where ``ready`` comes from."""

    factory: str
    torch_version: str
    mode: Mode
    order: OrderSource
    ready: tuple[int, ...]
    unused: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    caps: tuple[CapLayout, ...]


def layout(
    factory: str,
    caps_mb: Sequence[float | None] = (None,),
    mode: Mode = "plain",
    order: Sequence[int] | Literal["reverse"] | None = None,
) -> ModelLayout:
    """The ModelLayout of what ``factory`` returns, under each cap, as the installed PyTorch would have it.

    ``order`` is the ready order by parameter index, or the reverse of registration; None: traced where the factory gives
    inputs, else reverse. What user code prints goes to stderr. Raises UsageError and InputError.
    """
    with contextlib.redirect_stdout(sys.stderr):
        module, inputs = build(factory)
        tensors, parameters = reduced(module)
        if not tensors:
            raise InputError(f"{factory}: the model has no parameter that requires a gradient", "DDP refuses it too.")
        source: OrderSource
        if order is None and inputs is not None:
            source, ready = "traced", trace(factory, module, inputs, tensors, mode)
        elif order is None or order == "reverse":
            source, ready = "reverse", tuple(reversed(range(len(tensors))))
        else:
            source, ready = "given", _checked(order, len(tensors))
    unused = tuple(sorted(set(range(len(tensors))) - set(ready)))
    return ModelLayout(
        factory=factory,
        torch_version=torch.__version__,
        mode=mode,
        order=source,
        ready=ready,
        unused=unused,
        parameters=parameters,
        caps=tuple(_under(cap_mb, parameters, mode, ready, unused) for cap_mb in caps_mb),
    )


def _under(
    cap_mb: float | None, parameters: Sequence[Parameter], mode: Mode, ready: Sequence[int], unused: Sequence[int]
) -> CapLayout:
    is_last_small = os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1"
    limits = capacity(cap_mb, torch_version=torch.__version__, is_last_small=is_last_small)
    first = initial(parameters, limits, mode)
    lasting = first if mode == "find_unused" else rebuilt(parameters, limits, mode, ready)
    return CapLayout(
        cap_mb=cap_mb,
        initial=first,
        rebuilt=None if mode == "find_unused" else lasting,
        holds=holds(parameters, lasting, ready, unused) if lasting else (),
    )


def build(factory: str) -> tuple[torch.nn.Module, Any]:
    """The model of ``module:function``, made on the meta device, and its inputs or None. The current folder comes first."""
    name, _, attribute = factory.partition(":")
    if not name or not attribute:
        raise UsageError(f"{factory!r} names no factory", "Example: ddpprof layout examples.mlp:make")
    function = _attribute(_module(name), attribute, factory)
    with torch.device("meta"):
        made = _call(f"{factory} raised", _META, function)
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"{factory} returned {type(model).__name__}, not a torch.nn.Module", "Return the model, or (model, inputs)."
        )
    return model, inputs


def _module(name: str) -> Any:
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"{name!r} is a file, not a module", f"Name it as Python imports it from here: {dotted}")
    if sys.path[0] != str(Path.cwd()):
        sys.path.insert(0, str(Path.cwd()))
    try:
        return _call(f"{name} cannot be imported:", _TRACEBACK, lambda: importlib.import_module(name))
    except InputError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            hint = "It is looked for in the current folder, then where Python finds modules."
            raise UsageError(f"no module {name!r}", hint) from None
        raise


def _attribute(module: Any, name: str, factory: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [item for item in vars(module) if callable(getattr(module, item))], n=3)
        what = "is not a function" if found is not None else "does not exist"
        raise UsageError(f"{factory} {what}", f"Did you mean {' or '.join(near)}?" if near else None)
    return found


def reduced(module: torch.nn.Module) -> tuple[list[torch.nn.Parameter], tuple[Parameter, ...]]:
    """The parameters that DDP reduces, in its order, as they are and as the model takes them. P _build_params_for_reducer."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    found: dict[torch.nn.Parameter, Parameter] = {}
    for prefix, owner in module.named_modules():
        for name, tensor in owner.named_parameters(recurse=False):
            if tensor.requires_grad and f"{prefix}.{name}" not in ignored and tensor not in found:
                found[tensor] = Parameter(
                    name=f"{prefix}.{name}".removeprefix("."),
                    size_bytes=tensor.numel() * tensor.element_size(),
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    device=str(tensor.device),
                    is_sparse=isinstance(owner, torch.nn.Embedding | torch.nn.EmbeddingBag) and owner.sparse,
                )
    return list(found), tuple(found.values())


def trace(
    factory: str, module: torch.nn.Module, inputs: Any, tensors: Sequence[torch.nn.Parameter], mode: Mode
) -> tuple[int, ...]:
    """Parameter indices in the order in which a backward of the sum of all outputs gives gradients; unused ones are missing."""
    ready: list[int] = []

    def step() -> None:
        if isinstance(inputs, dict):
            outputs = module(**inputs)
        else:
            outputs = module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)
        sums = [leaf.sum() for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not sums:
            raise InputError(f"{factory}: no output of the model has a gradient", "Return tensors, or use --order reverse.")
        torch.stack([one.float() for one in sums]).sum().backward()

    for index, parameter in enumerate(tensors):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: ready.append(index))
    with torch.device("meta"):
        _call(f"{factory}: a step of the model raised", f"Without a step: --order reverse. {_TRACEBACK}", step)
    if mode == "static":  # a parameter with several hooks is ready at the last one, elsewhere at the first
        return tuple(dict.fromkeys(reversed(ready)))[::-1]
    return tuple(dict.fromkeys(ready))


def _call(what: str, hint: str, function: Any) -> Any:
    try:
        return function()
    except DdpprofError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} {_said(error)}", hint) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _checked(order: Sequence[int], count: int) -> tuple[int, ...]:
    wrong = [index for index in order if not 0 <= index < count]
    if wrong or len(set(order)) < len(order):
        what = f"there is no parameter {wrong[0]}" if wrong else "a parameter is named twice"
        raise UsageError(f"--order: {what}", f"Name each of 0 to {count - 1} once, less those that get no gradient.")
    return tuple(order)
