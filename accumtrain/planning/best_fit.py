"""A model of TensorFlow's best-fit-with-coalescing allocator, as a CPU's tensors use it.

A piece is rounded up to 256 bytes. The smallest free piece of the first bin that has one large enough is handed out,
whole unless it is at least twice as large or would leave 128 MB; free neighbours become one piece. Where nothing fits,
the system gives another region, of 2 MB first and then of twice as much each time. (third_party/xla/xla/tsl/framework/
bfc_allocator.cc)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

UNIT = 256  # bytes
FIRST_REGION = 2 * 2**20
LEFT_OVER = 128 * 2**20  # a piece that would leave as much is divided
LIMIT = 64 * 2**30  # what TensorFlow takes at most if nothing else is said
SPACING = 2**40  # between the addresses of two regions: no two are neighbours


class BestFitAllocator:
    """Addresses and sizes as TensorFlow's allocator gives them; the regions lie one below the other.

    Attributes:
        in_use: bytes handed out.
    """

    def __init__(self, limit: int = LIMIT):
        self._limit, self._reserved, self._region, self._base = limit, 0, FIRST_REGION, 2**62
        self._taken: dict[int, int] = {}  # size of each piece that is handed out, by its address
        self._free: list[tuple[int, int]] = []  # size and address, sorted: by size the bins follow each other, too
        self._free_sizes: dict[int, int] = {}  # of the same pieces, by their address
        self._free_ends: dict[int, int] = {}  # their addresses, by the address at which they end
        self.in_use = 0

    def copy(self) -> BestFitAllocator:
        """An allocator in the same state."""
        twin = BestFitAllocator()
        twin.__dict__ |= {
            name: value if isinstance(value, int) else value.copy() for name, value in self.__dict__.items()
        }
        return twin

    def take(self, asked: int) -> int:
        """Hands out a piece of at least `asked` bytes and returns its address. Raises as `play`."""
        addresses: dict[int, int] = {}
        self.play([0], [asked], addresses)
        return addresses[0]

    def give_back(self, address: int) -> None:
        """Takes back the piece at `address`."""
        self.play([~0], [], {0: address})

    def play(self, actions: Sequence[int], asked: Sequence[int], addresses: dict[int, int]) -> int:
        """Hands out the piece of each number among `actions`, and takes it back for ~number.

        All in one function, as it is called for some million actions of a plan.

        Args:
            asked: bytes that each number asks for, at least.
            addresses: where each piece lies that is handed out; changed.

        Returns:
            The most bytes that were handed out at a time.

        Raises:
            MemoryError: there is no free piece as large, and the limit allows no further region for it.
        """
        free, sizes, ends, taken = self._free, self._free_sizes, self._free_ends, self._taken
        in_use = peak = self.in_use
        for number in actions:
            if number < 0:  # a piece becomes one with its free neighbours
                address = addresses.pop(~number)
                size = taken.pop(address)
                in_use -= size
                end = address + size
                after = sizes.pop(end, None)
                if after is not None:
                    del free[bisect_left(free, (after, end))]
                    end += after
                    del ends[end]
                before = ends.pop(address, None)
                if before is not None:
                    del free[bisect_left(free, (address - before, before))]
                    address = before
                insort(free, (end - address, address))
                sizes[address] = end - address
                ends[end] = address
                continue
            size = max(UNIT, -(-asked[number] // UNIT) * UNIT)
            place = bisect_left(free, (size, 0))
            if place == len(free):
                self._add_region(size)
                place = bisect_left(free, (size, 0))
            found, address = free.pop(place)
            end = address + found
            del sizes[address]
            if found >= 2 * size or found - size >= LEFT_OVER:
                rest = address + size
                insort(free, (end - rest, rest))
                sizes[rest] = end - rest
                ends[end] = rest
                found = size
            else:
                del ends[end]
            addresses[number] = address
            taken[address] = found
            in_use += found
            if in_use > peak:
                peak = in_use
        self.in_use = in_use
        return peak

    def size(self, address: int) -> int:
        """Bytes of the piece at `address`."""
        return self._taken[address]

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
        insort(self._free, (given, self._base))
        self._free_sizes[self._base] = given
        self._free_ends[self._base + given] = self._base
        self._base -= SPACING
