"""A model of TensorFlow's best-fit-with-coalescing allocator, as a CPU's tensors use it.

A piece is rounded up to 256 bytes. The smallest free piece of the first bin that has one large enough is handed out,
whole unless it is at least twice as large or would leave 128 MB; free neighbours become one piece. Where nothing fits,
the system gives another region, of 2 MB first and then of twice as much each time. (third_party/xla/xla/tsl/framework/
bfc_allocator.cc)
"""

from __future__ import annotations

from bisect import bisect_left, insort

UNIT = 256  # bytes
FIRST_REGION = 2 * 2**20
LEFT_OVER = 128 * 2**20  # a piece that would leave as much is divided
LIMIT = 64 * 2**30  # what TensorFlow takes at most if nothing else is said
SPACING = 2**40  # between the addresses of two regions: no two are neighbours


class BestFitAllocator:
    """Addresses and sizes as TensorFlow's allocator gives them; the regions lie one below the other.

    Attributes:
        in_use: bytes handed out.
        peak: the most that `in_use` has been.
    """

    def __init__(self, limit: int = LIMIT):
        self._limit, self._reserved, self._region, self._base = limit, 0, FIRST_REGION, 2**62
        self._taken: dict[int, int] = {}  # size of each piece that is handed out, by its address
        self._free: list[tuple[int, int]] = []  # size and address, sorted: by size the bins follow each other, too
        self._free_sizes: dict[int, int] = {}  # of the same pieces, by their address
        self._free_ends: dict[int, int] = {}  # their addresses, by the address at which they end
        self.in_use = self.peak = 0

    def copy(self) -> BestFitAllocator:
        """An allocator in the same state."""
        twin = BestFitAllocator()
        twin.__dict__ |= {
            name: value if isinstance(value, int) else value.copy() for name, value in self.__dict__.items()
        }
        return twin

    def take(self, asked: int) -> int:
        """Hands out a piece of at least `asked` bytes and returns its address.

        Raises:
            MemoryError: there is no free piece as large, and the limit allows no further region for it.
        """
        size = max(UNIT, -(-asked // UNIT) * UNIT)
        place = bisect_left(self._free, (size, 0))
        if place == len(self._free):
            self._add_region(size)
            place = bisect_left(self._free, (size, 0))
        found, address = self._withdraw(place)
        if found >= 2 * size or found - size >= LEFT_OVER:
            self._offer(found - size, address + size)
            found = size
        self._taken[address] = found
        self.in_use += found
        if self.in_use > self.peak:
            self.peak = self.in_use
        return address

    def size(self, address: int) -> int:
        """Bytes of the piece at `address`."""
        return self._taken[address]

    def give_back(self, address: int) -> None:
        """Takes back the piece at `address`, which becomes one with its free neighbours."""
        size = self._taken.pop(address)
        self.in_use -= size
        after = self._free_sizes.get(address + size)
        if after is not None:
            self._withdraw(bisect_left(self._free, (after, address + size)))
            size += after
        before = self._free_ends.get(address)
        if before is not None:
            self._withdraw(bisect_left(self._free, (address - before, before)))
            size += address - before
            address = before
        self._offer(size, address)

    def _add_region(self, size: int) -> None:
        available = (self._limit - self._reserved) // UNIT * UNIT
        if size > available:
            raise MemoryError(f"{size} bytes are asked for, and {available} are left of {self._limit}")
        grown = size > self._region
        while size > self._region:
            self._region *= 2
        given = min(self._region, available)
        if not grown:
            self._region *= 2
        self._reserved += given
        self._offer(given, self._base)
        self._base -= SPACING

    def _offer(self, size: int, address: int) -> None:
        insort(self._free, (size, address))
        self._free_sizes[address] = size
        self._free_ends[address + size] = address

    def _withdraw(self, place: int) -> tuple[int, int]:
        """Takes the free piece at `place` out of them. Returns its size and address."""
        size, address = self._free.pop(place)
        del self._free_sizes[address]
        del self._free_ends[address + size]
        return size, address
