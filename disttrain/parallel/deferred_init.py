"""Initial weights without the whole model: record a constructor on fake tensors, replay it tensor by tensor.

Fake tensors have no memory. The operators of a constructor are recorded and later run in the same order from
the same random state, so that every weight is bit for bit the one of a model that was built on the CPU. Each
tensor is released after its last operator, and before it is overwritten (a layer's own initialisation, before
the model's). A rank so holds about one whole tensor at a time.

Fake tensors, not the meta device: `nn.init.trunc_normal_` and the models of transformers skip initialisation
there without an error, whereas reading the value of a fake tensor raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from disttrain.errors import in_one_line

_OVERWRITES = {"aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_", "aten::copy_"}
"""Operators whose result does not depend on the earlier content of the tensor."""


class NotDeferrable(Exception):
    """A constructor reads the value of a tensor, or keeps a tensor that no replay can fill."""


@dataclass(frozen=True)
class _Geometry:
    """Layout of a fake tensor, and its storage, which stays alive so that no later one has its identity."""

    storage: torch.UntypedStorage
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def key(self) -> int:
        """Identity of the storage."""
        return self.storage._cdata

    @property
    def is_whole(self) -> bool:
        """Whether the tensor is its whole storage."""
        return self.size.numel() * self.dtype.itemsize == self.storage.nbytes()


def _geometry(tensor: FakeTensor) -> _Geometry:
    return _Geometry(
        tensor.untyped_storage(), int(tensor.storage_offset()), tensor.size(), tensor.stride(), tensor.dtype
    )


@dataclass(frozen=True)
class _Operator:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    outputs: list[_Geometry]
    overwrites: bool
    """Whether the result does not depend on the earlier content of the first argument."""

    def storages(self) -> set[int]:
        """Storages that the operator reads or writes."""
        return {geometry.key for geometry in _geometries((self.arguments, self.options, self.outputs))}

    def overwritten(self) -> int | None:
        """The storage that the operator writes completely without reading it."""
        target = self.arguments[0] if self.overwrites else None
        return target.key if isinstance(target, _Geometry) and target.is_whole else None


class _Recorder(TorchDispatchMode):
    """Records the operators that create or change fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[_Operator] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        arguments, options = tree_map_only(FakeTensor, _geometry, (args, kwargs))
        result = func(*args, **kwargs)
        outputs = [_geometry(value) for value in tree_iter(result) if isinstance(value, FakeTensor)]
        read = {geometry.key for geometry in _geometries((arguments, options))}
        # a view shares its storage, and changes nothing
        if func._schema.is_mutable or any(output.key not in read for output in outputs):
            overwrites = func._schema.name in _OVERWRITES
            self.operators.append(_Operator(func, arguments, options, outputs, overwrites))
        return result

    def overwrite(self, function: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Record `function`, which overwrites `tensor`, as one operator."""
        assert isinstance(tensor, FakeTensor)
        target = _geometry(tensor)
        self.operators.append(_Operator(function, (target, *args), kwargs, [target], True))
        return tensor


@dataclass
class DeferredInit:
    """The recorded constructor of one model."""

    random_state: Tensor
    """State of torch's CPU generator when the constructor began."""
    operators: list[_Operator]
    tensors: dict[str, _Geometry | Tensor]
    """Recorded parameters and buffers by name; a tied one under each of its names."""
    _real: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def replay(self, fill: Callable[[str, Tensor], None]) -> None:
        """Call `fill` with each name and initial value of a parameter or buffer, on the CPU.

        The value is released when `fill` returns. Names come in the order in which their tensors are
        complete. The random state is as before afterwards.
        """
        names: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            if isinstance(tensor, _Geometry):
                names.setdefault(tensor.key, []).append(name)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.set_rng_state(self.random_state)
            for operator, last, final in _lifetimes(self.operators):
                self._run(operator)
                for storage in final & names.keys():
                    for name in names.pop(storage):
                        geometry = self.tensors[name]
                        assert isinstance(geometry, _Geometry)
                        fill(name, self._value(geometry))
                for storage in last:
                    self._real.pop(storage, None)
        for name, tensor in self.tensors.items():
            if isinstance(tensor, Tensor):  # its values came from elsewhere, such as a file
                fill(name, tensor)
        assert not names, "a recorded operator made every fake tensor"

    def _run(self, operator: _Operator) -> None:
        arguments, options = tree_map_only(_Geometry, self._value, (operator.arguments, operator.options))
        result = operator.function(*arguments, **options)
        made = [value for value in tree_iter(result) if isinstance(value, Tensor)]
        for recorded, value in zip(operator.outputs, made, strict=True):
            self._real.setdefault(recorded.key, value.untyped_storage())

    def _value(self, recorded: _Geometry) -> Tensor:
        """The real tensor in place of a recorded one; its memory is shared by all of its views."""
        if recorded.key not in self._real:
            self._real[recorded.key] = torch.UntypedStorage(recorded.storage.nbytes())
        empty = torch.empty(0, dtype=recorded.dtype)
        return empty.set_(self._real[recorded.key], recorded.offset, recorded.size, recorded.stride)


def record(build: Callable[[], nn.Module]) -> tuple[nn.Module, DeferredInit]:
    """The model of `build` on the meta device, and its initial weights. Raises `NotDeferrable`."""
    random_state = torch.get_rng_state()
    recorder = _Recorder()
    # rejection sampling reads values, so the whole function is one operator; private in torch
    truncated = partial(recorder.overwrite, nn.init._no_grad_trunc_normal_)
    try:
        with (
            _replaced(nn.init, "_no_grad_trunc_normal_", truncated),
            _replaced(nn.Module, "_apply", _apply_to_fake),
            FakeTensorMode(allow_non_fake_inputs=True),
            recorder,
        ):
            model = build()
    except DataDependentOutputException as error:
        raise NotDeferrable(f"its constructor reads a value of a tensor: {error}") from error
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise NotDeferrable(in_one_line(error)) from error
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    named |= dict(model.named_buffers(remove_duplicate=False))
    recorded = {name: _geometry(t) if isinstance(t, FakeTensor) else t for name, t in named.items()}
    _move_to_meta(model)
    return model, DeferredInit(random_state, recorder.operators, recorded)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for the time of a block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _apply_to_fake(module: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`nn.Module._apply`, behind `to` and `float`: torch's own swaps tensors, which fake ones refuse."""
    converted: dict[int, tuple[Tensor, Tensor]] = {}  # the first of a pair keeps its identity alive
    for owner in module.modules() if recurse else [module]:
        held: list[dict[str, Any]] = [owner._parameters, owner._buffers]
        for tensors in held:
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in converted:
                    with torch.no_grad():
                        value = convert(tensor)
                    if isinstance(tensor, nn.Parameter) and value is not tensor:
                        value = nn.Parameter(value, tensor.requires_grad)
                    converted[id(tensor)] = tensor, value
                if tensor is not None:
                    tensors[name] = converted[id(tensor)][1]
    return module


def _move_to_meta(model: nn.Module) -> None:
    """Replace parameters and buffers by tensors on the meta device; tied parameters stay tied."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, FakeTensor):
                raise NotDeferrable(f"{prefix}.{name} is a tensor, but neither a parameter nor a buffer")
    _apply_to_fake(model, lambda t: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta"))


def _lifetimes(operators: list[_Operator]) -> Iterator[tuple[_Operator, set[int], set[int]]]:
    """Each operator with the storages whose content nothing reads after it, and those that are complete.

    Content that is overwritten next is not read, but not complete either.
    """
    last: list[set[int]] = []
    final: list[set[int]] = []
    overwritten_next: dict[int, bool] = {}
    for operator in reversed(operators):
        touched = operator.storages()
        final.append({storage for storage in touched if storage not in overwritten_next})
        last.append({storage for storage in touched if overwritten_next.get(storage, True)})
        whole = operator.overwritten()
        overwritten_next |= {storage: storage == whole for storage in touched}
    yield from zip(operators, reversed(last), reversed(final), strict=True)


def _geometries(values: Any) -> list[_Geometry]:
    return [value for value in tree_iter(values) if isinstance(value, _Geometry)]
