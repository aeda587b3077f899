"""A machine on which warps with roles run, one at a time, in an order that is drawn: shared memory, barriers, copies, products.

What may happen late happens late: a copy arrives when it is drawn, in some runs only when nobody can go on; a product reads shared
memory when its result is waited for. Beside the numbers, the machine keeps for each place in shared memory who read and wrote it,
and for each role what it knows of others by barriers (vector clocks), so that a place which is read or written without having
waited for its last writer or readers is an error in any order of events.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Clock = dict[Hashable, int]


class MachineError(Exception):
    """What the hardware would not report: a race, a barrier that nobody completes, a result that is taken too early."""


class Stopped(BaseException):
    """Ends a role because another one failed."""


def join(a: Clock, b: Clock) -> None:
    for who, at in b.items():
        if at > a.get(who, 0):
            a[who] = at


@dataclass(eq=False)
class Role:
    """What a group of warps runs, and what it knows."""

    name: str
    block: Block
    warps: int
    run: Callable[[], None]
    speed: float
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] | None = None
    waits_for: str = ""
    done: bool = False
    clock: Clock = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)  # operands in registers that must be kept

    def __post_init__(self) -> None:
        self.clock[self] = 1

    def release(self) -> Clock:
        """What another may know once it has waited for this."""
        told = dict(self.clock)
        self.clock[self] += 1
        return told


@dataclass(eq=False)
class Place:
    """One slot of a ring in shared memory.

    Attributes:
        written: (who, when) of the last write; a copy is known by its place and number.
        reads: when each role has read it since, and whether the copy engine may know that.
        readers: products under way that read it.
    """

    name: str
    data: np.ndarray
    written: tuple[Hashable, int] | None = None
    copies: int = 0
    copying: bool = False
    reads: dict[Role, tuple[int, bool]] = field(default_factory=dict)
    readers: list[Product] = field(default_factory=list)
    barrier: Barrier | None = None


@dataclass(eq=False)
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes that were announced have."""

    place: Place
    count: int
    pending: int
    bytes: int = 0
    phases: int = 0
    told: Clock = field(default_factory=dict)
    known: Clock = field(default_factory=dict)

    def arrive(self, role: Role, count: int, expected: int = 0) -> None:
        if count > self.pending:
            raise MachineError(f"{role.name} arrives at {self.place.name}, where all have arrived")
        join(self.told, role.release())
        self.bytes += expected
        self.pending -= count
        self.turn()

    def land(self, size: int, told: Clock) -> None:
        join(self.told, told)
        self.bytes -= size
        self.turn()

    def turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phases += 1
            self.pending = self.count
            join(self.known, self.told)

    def passed(self, parity: int) -> bool:
        return self.phases % 2 != parity


@dataclass(eq=False)
class Meeting:
    """A named barrier: some threads wait, some only arrive."""

    threads: int
    arrived: int = 0
    turns: int = 0
    told: Clock = field(default_factory=dict)

    def arrive(self, role: Role) -> None:
        join(self.told, role.release())
        self.arrived += 32 * role.warps
        if self.arrived == self.threads:
            self.arrived = 0
            self.turns += 1


@dataclass(eq=False)
class Copy:
    """A tile on its way to shared memory."""

    place: Place
    barrier: Barrier
    values: np.ndarray
    size: int

    def land(self) -> None:
        p = self.place
        p.data[...] = self.values
        p.copying = False
        p.copies += 1
        p.written = (p, p.copies)
        self.barrier.land(self.size, {p: p.copies})


@dataclass(eq=False)
class Product:
    """A product of matrices that runs beside what started it."""

    role: Role
    places: tuple[Place, ...]
    compute: Callable[[], Any]
    registers: tuple[Any, ...]
    value: Any = None
    done: bool = False

    def finish(self) -> None:
        self.value = self.compute()
        self.done = True
        for place in self.places:
            place.readers.remove(self)
            place.reads[self.role] = self.role.clock[self.role], True
        self.role.held += self.registers


@dataclass(eq=False)
class Block:
    """A program instance."""

    number: int
    places: list[Place] = field(default_factory=list)
    meetings: dict[int, Meeting] = field(default_factory=dict)
    bytes: int = 0


class Machine:
    """Runs roles by turns that a seed draws."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.late = seed % 2 == 0  # copies arrive only when nobody can go on
        self.copies_speed = self.random.choice([0.02, 0.3, 5.0])
        self.roles: list[Role] = []
        self.copies: list[Copy] = []
        self.blocks: list[Block] = []
        self.finished = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.me: Role = None  # type: ignore[assignment]

    # -- Turns.

    def run(self, bodies: list[Callable[[Block], None]]) -> None:
        """Run program instances to their end. Raises what any of their roles raises."""
        for number, body in enumerate(bodies):
            block = Block(number)
            self.blocks.append(block)
            self.add("all", block, 4, lambda body=body, block=block: body(block))  # type: ignore[misc]
        self.me = self.draw()
        self.me.go.release()
        self.finished.acquire()
        if self.error is not None:
            raise self.error
        for block in self.blocks:
            self.check_end(block)

    def add(self, name: str, block: Block, warps: int, run: Callable[[], None]) -> Role:
        speed = 4.0 ** self.random.uniform(-2, 2)
        role = Role(f"{name} of instance {block.number}", block, warps, run, speed)
        self.roles.append(role)
        threading.Thread(target=self._body, args=(role,), daemon=True).start()
        return role

    def _body(self, role: Role) -> None:
        role.go.acquire()
        if self.error is not None:
            return
        try:
            with np.errstate(all="ignore"):
                role.run()
            self.check_role(role)
            role.done = True
            if any(not r.done for r in self.roles):
                self.me = self.draw()
                self.me.go.release()
                return
        except Stopped:
            return
        except BaseException as error:
            self.error = error
            for other in self.roles:
                other.go.release()
        self.finished.release()

    def draw(self) -> Role:
        """Who goes on; copies arrive meanwhile."""
        while True:
            ready = [r for r in self.roles if not r.done and (r.ready is None or r.ready())]
            speeds = [r.speed for r in ready]
            if self.copies and not (self.late and ready):
                speeds.append(self.copies_speed)
            if not speeds:
                waiting = [f"{r.name} waits for {r.waits_for}" for r in self.roles if not r.done]
                raise MachineError("nobody can go on: " + "; ".join(waiting))
            (n,) = self.random.choices(range(len(speeds)), speeds)
            if n == len(ready):
                self.copies.pop(self.random.randrange(len(self.copies))).land()
                continue
            ready[n].ready = None
            return ready[n]

    def pause(self, ready: Callable[[], bool] | None = None, waits_for: str = "") -> None:
        """Let others go on, until one may do so oneself."""
        me = self.me
        me.ready, me.waits_for = ready, waits_for
        following = self.draw()
        if following is me:
            return
        self.me = following
        following.go.release()
        me.go.acquire()
        if self.error is not None:
            raise Stopped

    def part(self, bodies: list[tuple[str, int, Callable[[], None]]]) -> None:
        """Give warps roles, and wait for their end."""
        me = self.me
        roles = [self.add(name, me.block, warps, run) for name, warps, run in bodies]
        told = me.release()
        for role in roles:
            join(role.clock, told)
        self.pause(lambda: all(r.done for r in roles), "its roles")

    # -- Who may read and write.

    def check_known(self, place: Place, does: str) -> None:
        if place.copying:
            raise MachineError(f"{self.me.name} {does} {place.name}, to which a copy is under way")
        if place.written is not None:
            who, at = place.written
            if self.me.clock.get(who, 0) < at:
                raise MachineError(
                    f"{self.me.name} {does} {place.name} and has not waited for its writer"
                )

    def check_read(self, place: Place) -> None:
        if place.written is None and not place.copying:
            raise MachineError(f"{self.me.name} reads {place.name}, which nobody wrote")
        self.check_known(place, "reads")

    def check_write(self, place: Place, *, engine: bool) -> None:
        self.check_known(place, "writes")
        for product in place.readers:
            raise MachineError(
                f"{self.me.name} writes {place.name}, which a product of {product.role.name} reads"
            )
        for reader, (at, fenced) in place.reads.items():
            if reader is not self.me and self.me.clock.get(reader, 0) < at:
                raise MachineError(
                    f"{self.me.name} writes {place.name} and has not waited for {reader.name}"
                )
            if engine and not fenced:
                raise MachineError(
                    f"a copy to {place.name} overtakes reads of {reader.name} without a fence"
                )
        place.reads.clear()

    def read(self, place: Place) -> np.ndarray:
        self.pause()
        self.check_read(place)
        place.reads[self.me] = self.me.clock[self.me], False
        return place.data

    def write(self, place: Place, values: np.ndarray) -> None:
        self.pause()
        self.check_write(place, engine=False)
        place.data[...] = values
        place.written = (self.me, self.me.clock[self.me])

    def fence(self) -> None:
        for place in self.me.block.places:
            if self.me in place.reads:
                place.reads[self.me] = place.reads[self.me][0], True

    # -- What runs beside.

    def copy(self, place: Place, barrier: Barrier, values: np.ndarray, size: int) -> None:
        self.pause()
        self.check_write(place, engine=True)
        place.copying = True
        place.data[...] = np.nan
        self.copies.append(Copy(place, barrier, values, size))

    def start(self, product: Product) -> None:
        self.pause()
        self.check_held(self.me)
        for place in product.places:
            self.check_read(place)
            place.readers.append(product)
        self.me.products.append(product)

    def finish_products(self, running: int) -> None:
        self.pause()
        while len(self.me.products) > running:
            self.me.products.pop(0).finish()

    def keep(self, value: Any) -> None:
        self.me.held = [v for v in self.me.held if v is not value]

    # -- Barriers.

    def wait(self, barrier: Barrier, parity: int) -> None:
        self.pause(lambda: barrier.passed(parity), f"phase {parity} of {barrier.place.name}")
        join(self.me.clock, barrier.known)

    def arrive(self, barrier: Barrier, count: int, expected: int = 0) -> None:
        self.pause()
        barrier.arrive(self.me, count, expected)

    def meet(self, number: int, threads: int, *, wait: bool) -> None:
        self.pause()
        meeting = self.me.block.meetings.setdefault(number, Meeting(threads))
        turn = meeting.turns
        meeting.arrive(self.me)
        if wait:
            self.pause(lambda: meeting.turns > turn, f"barrier {number}")
            join(self.me.clock, meeting.told)

    # -- What must hold at the end.

    def check_held(self, role: Role) -> None:
        if role.held:
            raise MachineError(f"{role.name} does not keep the registers that a product reads")

    def check_role(self, role: Role) -> None:
        self.check_held(role)
        if role.products:
            raise MachineError(f"{role.name} ends while its products run")

    def check_end(self, block: Block) -> None:
        for place in block.places:
            if place.copying or (place.barrier is not None and place.barrier.bytes):
                raise MachineError(f"instance {block.number} ends while copies to {place.name} run")
        for number, meeting in block.meetings.items():
            if meeting.arrived:
                raise MachineError(
                    f"instance {block.number} ends while barrier {number} is half full"
                )
