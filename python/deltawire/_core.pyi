from collections.abc import Sequence

def version() -> str:
    """Version of the package that this was built as."""

class Memory:
    """One storage: host bytes, or a torch storage on any device."""

    @property
    def size_bytes(self) -> int: ...
    def check(self) -> None:
        """Raises the first failure of an operation on this storage."""

def host_memory(address: int, size_bytes: int, owner: object | None) -> Memory:
    """Bytes of this process; owner keeps them in place."""

def torch_memory(storage: object, size_bytes: int) -> Memory:
    """A deltawire._torch_ops.Storage."""

class Tensor:
    """
    A view of a Memory; strides in elements, dtype as safetensors names it.
    """

    def __init__(
        self, memory: Memory, offset_bytes: int, dtype: str, shape: Sequence[int], strides: Sequence[int]
    ) -> None: ...

class Kernels:
    """
    One kernel table: ref, cpu, or torch. Offsets in bytes; positions as little-endian uint32.
    """

    def __init__(self, name: str) -> None: ...
    def digest(
        self, memory: Memory, offset: int, cast: int, n: int, canonical: int, key: int
    ) -> tuple[int, int]: ...
    def compare(
        self, old_memory: Memory, old_offset: int, memory: Memory, offset: int, cast: int, n: int
    ) -> tuple[bytes, bytes, bytes]: ...
    def read(self, memory: Memory, offset: int, cast: int, stride: int, n: int) -> bytes: ...
    def copy(
        self, memory: Memory, offset: int, cast: int, n: int, to_memory: Memory, to_offset: int
    ) -> None: ...
    def gather(self, memory: Memory, offset: int, cast: int, positions: bytes) -> bytes: ...
    def scatter(self, memory: Memory, offset: int, width: int, positions: bytes, bits: bytes) -> None: ...
    def write(self, memory: Memory, offset: int, width: int, bits: bytes) -> None: ...
    def invert_adamw(
        self,
        theta: Memory,
        m: Memory,
        v: Memory,
        offset: int,
        n: int,
        step: int,
        hyper: tuple[float, float, float, float, float],
        canonical: int,
        key: int,
        m_is_bf16: bool = False,
        v_is_bf16: bool = False,
    ) -> tuple[tuple[int, int], bytes, bytes, bytes, bytes, bytes]:
        """lanes, changed, changed_old, uncertain, uncertain_low, uncertain_span"""

    def invert_sgd(
        self,
        theta: Memory,
        x: Memory,
        y: Memory | None,
        offset: int,
        n: int,
        hyper: tuple[float, float, float],
        canonical: int,
        key: int,
    ) -> tuple[tuple[int, int], bytes, bytes, bytes, bytes, bytes]:
        """lanes, changed, changed_old, uncertain, uncertain_low, uncertain_span"""

    def select_small(self, memory: Memory, offset: int, cast: int, n: int) -> tuple[bytes, bytes]: ...

class Version:
    @property
    def number(self) -> int: ...
    @property
    def base(self) -> int | None: ...
    @property
    def digest(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def changed(self) -> int: ...
    @property
    def uncertain(self) -> int: ...
    @property
    def dense(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def detectors(self) -> list[tuple[str, str, int, int]]:
        """(detector, reason, tensors, elements)"""

    @property
    def stages(self) -> list[tuple[str, float]]: ...
    @property
    def notes(self) -> list[str]: ...

def checkpoint_tensors(path: str) -> list[tuple[str, str, list[int]]]:
    """(name, dtype, shape), sorted by name."""

def diff(old: str, new: str, out: str, coding: str, threads: int) -> Version: ...
def apply(base: str, patch: str, out: str, threads: int) -> Version: ...

class AuditReport:
    @property
    def number(self) -> int: ...
    @property
    def tensors(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def compared(self) -> int: ...
    @property
    def different(self) -> int: ...
    @property
    def blocks_wrong(self) -> int: ...
    @property
    def first_wrong(self) -> list[str]: ...

class Publisher:
    def __init__(
        self,
        url: str,
        tensors: Sequence[tuple[str, Sequence[str], Tensor, str, str, str, int]],
        *,
        run: str,
        resume: bool,
        continuity: tuple[str, int, str] | None,
        single_writer: bool,
        cast_rule: str,
        codings: Sequence[str],
        base: str | None,
        anchor_every: int,
        anchor_files: Sequence[tuple[str, bytes]],
        threads: int,
    ) -> None: ...
    @property
    def run(self) -> str: ...
    @property
    def opened(self) -> Version: ...
    @property
    def memory_bytes(self) -> int: ...
    def before_step(self) -> None: ...
    def after_step(
        self,
        steps: Sequence[
            tuple[int, int, tuple[float, float, float, float, float], Tensor | None, Tensor | None, str]
        ],
    ) -> None: ...
    def check_steps(self, steps: Sequence[int]) -> None: ...
    def publish(self, durable: bool) -> Version: ...
    def flush(self) -> None: ...
    def write_anchor(self) -> None: ...
    def state(self) -> tuple[str, int, str]: ...
    def close(self) -> None:
        """Nothing else may be called afterwards."""

    def audit(self) -> AuditReport: ...

class Cancel:
    """Ends a wait in another thread."""

    def __init__(self) -> None: ...
    def cancel(self) -> None: ...

class Subscriber:
    def __init__(
        self,
        url: str,
        targets: Sequence[tuple[str, Tensor]],
        *,
        folder: str | None,
        run: str | None,
        codings: Sequence[str] | None,
        threads: int,
    ) -> None: ...
    @property
    def version(self) -> Version | None: ...
    @property
    def run(self) -> str: ...
    @property
    def unmanaged(self) -> list[str]: ...
    @property
    def digest(self) -> str: ...
    @property
    def has_staged(self) -> bool: ...
    @property
    def pinned(self) -> bool: ...
    @property
    def refusals(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def recovered(self) -> bool: ...
    def stage(self, number: int | None) -> Version: ...
    def commit(self) -> Version: ...
    def update(self, number: int | None) -> Version: ...
    def rollback(self) -> Version: ...
    def close(self) -> None:
        """Nothing else may be called afterwards."""

    def unpin(self) -> None: ...
    def verify(self) -> None: ...
    def newer_version(self, than: int | None, timeout_ms: int, poll_ms: int, cancel: Cancel) -> int | None:
        """The only function that may run beside others."""
