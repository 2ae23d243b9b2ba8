"""Values that come into a model while it is used already: what reads a tensor waits for that tensor.

A tensor whose values are in flight has its own class until they arrive. PyTorch hands each of its functions
that is called with such a tensor to ``__torch_function__``, which waits, gives the tensor its own class back, and calls
the function again. So it does not matter where a parameter is read: in its module, in another one, in a hook, by
``state_dict`` or ``deepcopy``. Hooks on modules wait for what they own before they run, for code that does not go
through PyTorch's functions (extensions in C++), and for what asks for a tensor's class (fast paths).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from zmqps.errors import ConfigurationError

#: Attributes and methods of a tensor that do not depend on its values: `zero_grad` must not wait for them. Not ``dim``
#: and ``size``, though: ``torch.vmap`` calls nothing else before it wraps a tensor.
_ATTRIBUTES = (
    "_backward_hooks", "_post_accumulate_grad_hooks", "_version", "device", "dtype", "grad", "grad_fn", "is_cpu",
    "is_cuda", "is_leaf", "is_meta", "is_mps", "is_quantized", "is_sparse", "is_xla", "layout", "ndim",
    "requires_grad", "retains_grad", "shape",
)  # fmt: skip
_METHODS = (
    "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point", "nelement", "numel",
    "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
)  # fmt: skip


def _functions() -> Iterator[Any]:
    for name in _ATTRIBUTES:
        if hasattr(torch.Tensor, name):
            attribute = getattr(torch.Tensor, name)
            yield attribute.__get__
            if name in ("grad", "requires_grad"):
                yield attribute.__set__
                yield attribute.__delete__
    for name in _METHODS:
        yield getattr(torch.Tensor, name)


#: Modules that take another path, when they are evaluated, where a tensor of their children has another class.
_ASK_FOR_CLASSES = torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer
#: What PyTorch calls them when it asks `__torch_function__`.
_WITHOUT_VALUES = frozenset(_functions())

#: The group of each tensor whose values are in flight, by ``id``; its `Group` keeps the tensor alive.
_AWAITED: dict[int, Arrivals] = {}


class _Awaited:
    """Base of the classes of tensors whose values are in flight."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _WITHOUT_VALUES and not torch.compiler.is_compiling():
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        _arrive((*args, *(kwargs or {}).values()))
        return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _arrive([self])
        return self.__deepcopy__(memo)  # of the class that it has now

    def __reduce_ex__(self, protocol: Any) -> Any:
        _arrive([self])
        return self.__reduce_ex__(protocol)


class _AwaitedParameter(_Awaited, torch.nn.Parameter):  # type: ignore[misc,unused-ignore]
    """A parameter whose values are in flight."""


class _AwaitedBuffer(_Awaited, torch.Tensor):  # type: ignore[misc,unused-ignore]
    """A buffer whose values are in flight."""


#: By the class of a tensor; one of another class is waited for at once.
_CLASSES: dict[type, type] = {torch.nn.Parameter: _AwaitedParameter, torch.Tensor: _AwaitedBuffer}
_OWN = {awaited: own for own, awaited in _CLASSES.items()}


def _arrive(values: Iterable[Any]) -> None:
    """Wait for the tensors among some values, and in lists and mappings among them."""
    for value in values:
        if isinstance(value, _Awaited):
            arrivals = _AWAITED.get(id(value))
            if arrivals is not None:
                arrivals.wait_for([value])
        elif isinstance(value, list | tuple | set):
            _arrive(value)
        elif isinstance(value, Mapping):
            _arrive(value.values())


class Group(NamedTuple):
    """Tensors whose values come together."""

    tensors: Sequence[torch.Tensor]
    futures: Sequence[Future[Any]]
    landed: Callable[[], None]  # called when they are there, before anything reads them


class Arrivals:
    """The values in flight of a model's tensors.

    Parameters
    ----------
    model
        Whose modules wait for what they own.

    Attributes
    ----------
    pending
        Whether there are any. A plain attribute: compiled code is guarded by it, and asks for nothing else.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.pending = False
        self._coming: dict[int, Group] = {}  # by the id of each tensor
        self._hooks: list[Any] = []
        for module in model.modules():
            owns = bool(module._parameters) or bool(module._buffers)
            if module is model or owns or isinstance(module, _ASK_FOR_CLASSES):
                self._hooks.append(module.register_forward_pre_hook(_Hook(self, module, is_root=module is model)))

    def expect(self, group: Group) -> None:
        """Let what reads a tensor of a group wait for the values of the group from now on."""
        at_once = False
        for tensor in group.tensors:
            self._coming[id(tensor)] = group
            _AWAITED[id(tensor)] = self
            awaited = _CLASSES.get(type(tensor))
            if awaited is None:
                at_once = True
            else:
                tensor.__class__ = awaited
        self.pending = True
        if at_once:
            self.wait_for(group.tensors)

    def wait_for(self, tensors: Iterable[Any]) -> None:
        """Return when the values of some tensors are there; what has failed fails again for each that reads it.

        Raises
        ------
        PSError
            As `zmqps.Worker.pull`.
        """
        for tensor in tensors:
            if (group := self._coming.get(id(tensor))) is not None:
                for future in group.futures:
                    future.result()
                self._settle(group)

    def wait(self) -> None:
        """Return when all values are there. If some have failed, nothing is waited for any more.

        Raises
        ------
        PSError
            As `zmqps.Worker.pull`.
        """
        groups = {id(group): group for group in self._coming.values()}.values()
        try:
            for group in groups:
                self.wait_for(group.tensors[:1])
        finally:
            for group in groups:
                self._settle(group)

    def _settle(self, group: Group) -> None:
        """Nothing of a group is waited for any more; its values are there, or have failed."""
        settled = [tensor for tensor in group.tensors if self._coming.pop(id(tensor), None) is group]
        for tensor in settled:  # else another thread was first
            del _AWAITED[id(tensor)]
            if (own := _OWN.get(type(tensor))) is not None:
                tensor.__class__ = own
        self.pending = bool(self._coming)
        if settled:
            group.landed()

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()


class _Hook:
    """Before a module runs, waits for what it owns. A copy of the model has one that does nothing.

    That is what it owns now, and what it owned at first: ``torch.func`` puts others in their place, in the same memory.
    The model as a whole waits for everything where it is compiled or evaluated: there is nothing to overlap with.
    """

    def __init__(self, arrivals: Arrivals, module: torch.nn.Module, *, is_root: bool) -> None:
        self._arrivals = arrivals
        self._is_root = is_root
        self._first = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        self._wait = torch.compiler.disable(self._wait_for)  # here: at import time it would take a second

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if self._arrivals.pending:
            everything = self._is_root and (torch.compiler.is_compiling() or not module.training)
            self._wait(module, everything=everything or (self._is_root and _is_compiled(module)))

    def _wait_for(self, module: torch.nn.Module, *, everything: bool) -> None:
        if everything:
            self._arrivals.wait()
        else:
            self._arrivals.wait_for(self._first)
            self._arrivals.wait_for(module.parameters(recurse=not module.training))
            self._arrivals.wait_for(module.buffers(recurse=not module.training))

    @property
    def __name__(self) -> str:
        """Refuse ``torch.jit.script``, which alone asks for it: its code reads parameters where nothing can wait."""
        raise ConfigurationError(
            "torch.jit.script reads parameters where nothing can wait for them: script the model before "
            "zmqps.torch.Optimizer(…, overlap=True) is made, or leave overlap out"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nothing

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _is_compiled(model: torch.nn.Module) -> bool:
    """Whether a model, or a part of it, is compiled."""
    return any(m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in model.modules())


def nothing(*_: Any) -> None:
    """Do nothing, in the place of a hook."""


def _no_hook() -> Callable[..., None]:
    """Return what a hook is in a model that was read from a file."""
    return nothing
