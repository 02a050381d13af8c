# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, nonecheck=False
"""The compiled core: a machine's calendar, links and memories, equal to `_python_core` to the picosecond.

`_python_core` defines the times: every flit takes every link by its own calendar entry. Here the flits of a message
move as a train until other traffic comes between them. What both modules define is documented there.

A train reserves a link for all of its flits, and their departures follow by arithmetic. It does so when its first flit
reaches the link, or earlier if nothing else is in flight towards it. If other traffic reaches the link before a flit of
the train does, the train is split there: its later flits give back this link and the links behind it, and continue as a
new train. So links serve flits in order of arrival, at a few entries per message. On links where splits are frequent,
an entry per link costs less than undoing reservations.

Flit i of a train arrives at max(a + i * d) over the train's lines (a, d). A link that serves a flit in d ps, and is
free for the first one at s, has served flit i at the later of s + (i + 1) * d and its arrival + d: again a maximum of
lines, as it is convex. A line also records where its flits have waited; of several equal lines the first one counts.

Times, sizes and keys are 64-bit integers; a time beyond 2**62 ps is an error. Python objects referenced from C arrays
are kept in lists, where Python's garbage collector sees them.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memmove, memset

cimport cython

cdef extern from *:
    """
    #ifdef _MSC_VER
    #include <intrin.h>
    static int lowest_bit(unsigned __int64 x) { unsigned long i; _BitScanForward64(&i, x); return (int)i; }
    #else
    #define lowest_bit(x) __builtin_ctzll(x)
    #endif
    """
    int lowest_bit(uint64_t x) noexcept nogil

from kernbench.sim_engine._transaction cimport Transaction
from kernbench.sim_engine._waits cimport Waits

from time import monotonic

import numpy as np

from kernbench.errors import StateError
from kernbench.sim_engine._python_core import Hop
from kernbench._units import ACK_BYTES, ns_to_ps

cdef int64_t FIRST_EVENT = 0, NORMAL = 1, ARRIVAL = 2
cdef int64_t LIMIT = <int64_t>1 << 62
cdef int64_t LAST = <int64_t>1 << 62
cdef int NUMBER_BITS = 40, SLOT_BITS = 3, FEW = 256

# Arrivals at a link, after a train had to be split there, until a train may reserve it ahead again.
cdef int BACKOFF = 256
# Entries between checks of the host time, and host time after which `drain` returns.
cdef int LOOK_EVERY = 128
cdef double SLICE_S = 0.02

# Kinds of entries; WAKE + what wakes a callee.
cdef enum:
    CALL, EVENT, ADVANCE, HOP, PASS, LAND, END, REACH, ARRIVE, RELEASE, ACKNOWLEDGE, EMERGE, WAKE

cdef int BULK_ = 0, QUEUE_ = 1
BULK, QUEUE = 0, 1
cdef int64_t UNKNOWN = -1  # the wait of a message that is not recorded
cdef int NONE_ = -1, READ_ = 0, WRITE_ = 1
cdef int ACK = ACK_BYTES

# Whether any link has a hook: else routes need not be searched for one.
cdef bint hooked = False


cdef object _too_late(t):
    return OverflowError(f"a simulated time of {t} ps is past 2**62 ps (53 days): use smaller sizes or faster links")


cdef int64_t checked(t, what) except -1:
    if not 0 <= t < LIMIT >> 2:
        raise ValueError(f"a {what} of {t} ps is not between 0 and 2**60 ps")
    return t


# ---------------------------------------------------------------------------------------------------------- C arrays


cdef inline bint before(Place* x, Place* y) noexcept nogil:
    if x.t != y.t:
        return x.t < y.t
    if x.priority != y.priority:
        return x.priority < y.priority
    return x.order < y.order


cdef int more_room(void** at, int* room, size_t size, int least=4) except -1:
    cdef int wanted = 2 * room[0] if room[0] else least
    cdef void* grown = PyMem_Realloc(at[0], wanted * size)
    if grown == NULL:
        raise MemoryError()
    at[0], room[0] = grown, wanted
    return 0


cdef inline int add(Lines* lines, int64_t a, int64_t d, int64_t wait=0) except -1:
    if lines.n == lines.room:
        more_room(<void**>&lines.at, &lines.room, sizeof(Line))
    lines.at[lines.n].a = a
    lines.at[lines.n].d = d
    lines.at[lines.n].wait = wait
    lines.n += 1
    return 0


# A heap of four branches is half as deep as one of two, and the four lie in neighbouring lines of the cache.


cdef inline int insert(Heap* heap, Entry* entry) except -1:
    cdef int i = heap.n, parent
    if i == heap.room:
        more_room(<void**>&heap.at, &heap.room, sizeof(Entry))
    heap.n += 1
    cdef Entry* at = heap.at
    while i:
        parent = (i - 1) >> 2
        if not before(&entry.place, &at[parent].place):
            break
        at[i] = at[parent]
        i = parent
    at[i] = entry[0]
    return 0


cdef inline void remove(Heap* heap) noexcept nogil:
    """Remove the first entry."""
    heap.n -= 1
    cdef Entry* at = heap.at
    cdef Entry* entry = &at[heap.n]
    cdef int n = heap.n, i = 0, child = 1, end, j
    while child < n:
        end = child + 4 if child + 4 < n else n
        for j in range(child + 1, end):
            if before(&at[j].place, &at[child].place):
                child = j
        if not before(&at[child].place, &entry.place):
            break
        at[i] = at[child]
        i = child
        child = 4 * i + 1
    at[i] = entry[0]


# A calendar with few entries is the heap `soon`. Of one with many, most are for the next 8 ns: they are in lists, one for
# each slot of 8 ps, and are added without being compared. The list of slot `next` enters the heap when it is due.


cdef inline int add_entry(Calendar* calendar, Entry* entry) except -1:
    cdef int64_t slot = entry.place.t >> SLOT_BITS
    cdef int i = calendar.free, at = slot & (SLOTS - 1)
    cdef uint64_t bit = <uint64_t>1 << (at & 63)
    if slot <= calendar.slot or calendar.soon.n + calendar.n_later + calendar.far.n < FEW:
        return insert(&calendar.soon, entry)
    if slot < calendar.next:
        calendar.next = slot
    if slot - calendar.slot >= SLOTS:
        return insert(&calendar.far, entry)
    if i < 0:  # all are taken
        i = calendar.n_later
        if i == calendar.room:
            more_room(<void**>&calendar.later, &calendar.room, sizeof(Later))
    else:
        calendar.free = calendar.later[i].next
    calendar.n_later += 1
    calendar.later[i].entry = entry[0]
    calendar.later[i].next = calendar.first[at] if calendar.filled[at >> 6] & bit else -1
    calendar.filled[at >> 6] |= bit
    calendar.first[at] = i
    return 0


cdef int look_on(Calendar* calendar) noexcept nogil:
    """Set `next`, to LIMIT if there are no other entries than those in `soon`."""
    cdef int at = (calendar.slot + 1) & (SLOTS - 1), word = at >> 6
    cdef uint64_t filled = calendar.filled[word] >> (at & 63)
    calendar.next = LIMIT
    if calendar.n_later and filled:
        calendar.next = calendar.slot + 1 + lowest_bit(filled)
    elif calendar.n_later:
        calendar.next = calendar.slot + 1 - (at & 63)
        while True:
            calendar.next += 64
            word = (word + 1) & (WORDS - 1)
            if calendar.filled[word]:
                calendar.next += lowest_bit(calendar.filled[word])
                break
    if calendar.far.n:
        calendar.next = min(calendar.next, calendar.far.at[0].place.t >> SLOT_BITS)
    return 0


cdef int64_t first_time(Calendar* calendar) noexcept nogil:
    """Get the time of the first entry, LIMIT if there is none."""
    cdef int64_t t = calendar.soon.at[0].place.t if calendar.soon.n else LIMIT
    cdef int i = -1, at = calendar.next & (SLOTS - 1)
    if calendar.next <= t >> SLOT_BITS:
        if calendar.far.n:
            t = min(t, calendar.far.at[0].place.t)
        if calendar.next - calendar.slot < SLOTS and calendar.filled[at >> 6] & <uint64_t>1 << (at & 63):
            i = calendar.first[at]
    while i >= 0:
        t = min(t, calendar.later[i].entry.place.t)
        i = calendar.later[i].next
    return t


cdef inline bint any_by(Calendar* calendar, int64_t t) noexcept nogil:
    """Whether an entry comes at `t` or before."""
    if calendar.soon.n and calendar.soon.at[0].place.t <= t:
        return True
    return calendar.next <= t >> SLOT_BITS and (calendar.next < t >> SLOT_BITS or first_time(calendar) <= t)


cdef inline bint is_due(Calendar* calendar) noexcept nogil:
    """Whether the first entry may be in slot `next`."""
    return calendar.next < LIMIT and (not calendar.soon.n or calendar.soon.at[0].place.t >> SLOT_BITS >= calendar.next)


cdef int go_on(Calendar* calendar) except -1:
    """Move the entries of slot `next` to `soon`."""
    cdef int at = calendar.next & (SLOTS - 1), i, last
    cdef uint64_t bit = <uint64_t>1 << (at & 63)
    if calendar.next - calendar.slot < SLOTS and calendar.filled[at >> 6] & bit:
        calendar.filled[at >> 6] ^= bit
        i = last = calendar.first[at]
        while i >= 0:
            insert(&calendar.soon, &calendar.later[i].entry)
            calendar.n_later -= 1
            last, i = i, calendar.later[i].next
        calendar.later[last].next, calendar.free = calendar.free, calendar.first[at]
    calendar.slot = calendar.next
    while calendar.far.n and calendar.far.at[0].place.t >> SLOT_BITS == calendar.slot:
        insert(&calendar.soon, &calendar.far.at[0])
        remove(&calendar.far)
    return look_on(calendar)


cdef bint pop(Calendar* calendar, Entry* entry) except -1:
    """Remove the first entry; return False if there is none."""
    if is_due(calendar):
        go_on(calendar)
    if not calendar.soon.n:
        return False
    entry[0] = calendar.soon.at[0]
    remove(&calendar.soon)
    return True


cdef inline int64_t latest(Line* lines, int n, int64_t i) noexcept nogil:
    """Arrival of flit `i`."""
    cdef int64_t t = lines[0].a + i * lines[0].d, other
    cdef int j
    for j in range(1, n):
        other = lines[j].a + i * lines[j].d
        if other > t:
            t = other
    return t


cdef inline int64_t wait_of(Line* lines, int n, int64_t i) noexcept nogil:
    """The last wait of flit `i`."""
    cdef int64_t t = latest(lines, n, i)
    cdef int j = 0
    while lines[j].a + i * lines[j].d < t:
        j += 1
    return lines[j].wait


cdef inline int64_t come_before(Line* lines, int m, int64_t n, int64_t t) noexcept nogil:
    """Count the flits, of `n`, that arrive before `t` [ps]."""
    cdef int j
    cdef int64_t count
    for j in range(m):
        if lines[j].d:
            count = t - lines[j].a
            count = (count + lines[j].d - 1) // lines[j].d if count > 0 else 0
            if count < n:
                n = count
        elif lines[j].a >= t:
            return 0
    return n


# ------------------------------------------------------------------------------------------------- links and trains


@cython.final
@cython.freelist(64)
cdef class Claim:
    """A train's reservation of a link: the index of the link in its route, its number there, and its last arrival.

    `before` is the previous one, if that may still have flits to arrive.
    """


@cython.final
cdef class Link:
    """A directed link: a FIFO server of flits, followed by a latency.

    `free` is the end of its last reservation. `priority` and `base` order its output among simultaneous arrivals: later
    output has higher numbers, counted from `base`. `merges`: routes reach it over several links or begin here, or its
    latency is 0. `hook` is the component behind it, if that processes every flit, and `behind` is when the last flit
    leaves that; `memory` is notified of every flit of a write. With credits, `legs` are the legs of the routes over it,
    by the identity of their links; `pending` flits wait in front of the network, and `arbiter` is notified when there
    are none.

    `served_key` and `served_wait` are the message of the last flit reserved, and that flit's last wait.

    `claim_train` is the last train that reserved it, `last` the arrival of that train's last flit; `claims` is the one
    before. `backoff` counts the trains that may not yet reserve it ahead.
    """

    def __init__(self, str src, str dst, like, int64_t to, int64_t rank, int64_t extra_ps, hook, bint merges, times, int64_t flit_bytes, int64_t number, tuple lanes):
        global hooked
        self.src, self.dst = src, dst
        _, _, self.bw_gbs, self.edge_ps, _, _, self.header_bytes = like
        self.lat = checked(self.edge_ps + extra_ps, "latency")
        self.hook, self.times = hook, times
        hooked = hooked or hook is not None
        self.priority = ARRIVAL + 1 + rank
        self.base = to << NUMBER_BITS
        self.merges = merges or not self.lat
        self.flit_bytes, self.flit_ps = flit_bytes, checked(times[flit_bytes], "service time")
        self.small_size = -1
        self.last = self.served_key = self.served_wait = -1
        self.number = number
        self.lane, self.beyond = lanes

    def __dealloc__(self):
        PyMem_Free(self.gaps)

    @property
    def name(self):
        return f"{self.src}->{self.dst}"

    cdef int64_t ps(self, int64_t size) except -1:
        if size == self.flit_bytes:
            return self.flit_ps
        if size != self.small_size:
            self.small_ps = checked(self.times[size], "service time")
            self.small_size = size
        return self.small_ps

    cdef int idle(self, int64_t now, int64_t begin, int64_t ps, int64_t step, int64_t n) except -1:
        """Record `n` idle gaps of `ps`: the first from `begin`, each next one `step` later."""
        cdef Gap* gap
        cdef int past = 0
        while past < self.n_gaps:
            gap = &self.gaps[past]
            if gap.begin + (gap.n - 1) * gap.step + gap.ps > now:
                break
            past += 1
        if past:
            self.n_gaps -= past
            memmove(self.gaps, self.gaps + past, self.n_gaps * sizeof(Gap))
        if self.n_gaps == self.gaps_room:
            more_room(<void**>&self.gaps, &self.gaps_room, sizeof(Gap))
        gap = &self.gaps[self.n_gaps]
        gap.begin, gap.ps, gap.step, gap.n = begin, ps, step, n
        self.n_gaps += 1
        return 0

    cdef int idle_between(self, int64_t now, Line* lines, int m, int64_t n, int64_t d) except -1:
        """Record the gaps between `n` flits that are served in `d` ps each and arrive behind it by `lines`."""
        cdef int64_t i = 0, t, step, low, high, middle
        while i < n - 1:
            # Arrivals are convex: flits i to `low` are equally spaced.
            t, low, high = latest(lines, m, i), i + 1, n - 1
            step = latest(lines, m, low) - t
            while low < high:
                middle = (low + high + 1) // 2
                if latest(lines, m, middle) - t == (middle - i) * step:
                    low = middle
                else:
                    high = middle - 1
            if step > d:
                self.idle(now, t - self.lat, step - d, step, low - i)
            i = low
        return 0

    cdef void forget_idle(self, int64_t t) noexcept:
        """Drop gaps from `t` on, as reservations from then on are given back."""
        cdef Gap* gap
        while self.n_gaps:
            gap = &self.gaps[self.n_gaps - 1]
            if gap.begin < t:
                gap.n = min(gap.n, (t - gap.begin + gap.step - 1) // gap.step)
                return
            self.n_gaps -= 1

    cdef int64_t busy_by(self, int64_t now) noexcept:
        """Busy time until now [ps]: all reservations, less what is ahead of the clock."""
        cdef int64_t ahead = max(0, self.free - now), past
        cdef Gap* gap
        cdef int i
        for i in range(self.n_gaps):
            gap = &self.gaps[i]
            past = now - gap.begin
            if past < gap.n * gap.step:
                ahead -= gap.n * gap.ps
                if past > 0:
                    ahead += past // gap.step * gap.ps + min(past % gap.step, gap.ps)
        return self.busy_ps - ahead


@cython.final
@cython.freelist(512)
cdef class Train:
    """`n` flits of `size` bytes that reach link `k` of `links` by `lines`.

    `fn(arg)` is called at the arrival of the last one. With `each`, a memory is notified of every flit; `delivered`
    counts the notifications so far. `out` holds the arrivals behind each reserved link from `k` on; `taken`, for each
    of the `stops` reserved links, the end of its lines and the state of the link before. `key` is the message's.
    `number` orders flits that leave a link, and is that of the last reserved link. `left` flits have taken link `k` one
    by one before these `n`, and `apart` is set until the train takes links as a whole again. After a split, `child` is
    the part from there on, `rest` are the flits split off, and `before`, until those continue, is the train that they
    were split off from. `wait` is the last wait of the last flit.
    """

    def __dealloc__(self):
        PyMem_Free(self.lines.at)
        PyMem_Free(self.out.at)
        PyMem_Free(self.taken)


cdef Train new_train(tuple links, int k, int64_t n, int64_t size, int64_t key, int64_t number, fn, arg, bint each):
    cdef Train train = Train.__new__(Train)
    train.key, train.wait = key, UNKNOWN
    train.links, train.k, train.n, train.size, train.number = links, k, n, size, number
    train.fn, train.arg, train.each = fn, arg, each
    return train


cdef inline Train front_of(Train train):
    """Find the part of a train that is furthest along its route."""
    while train.child is not None:
        train = train.child
    return train


cdef inline Line* view(Train train, int k, int* m) noexcept:
    """Get the `m` lines by which the flits of a train arrive at link `k`."""
    cdef int i = k - train.k, begin
    if not i:
        m[0] = train.lines.n
        return train.lines.at
    begin = train.taken[i - 2].end if i > 1 else 0
    m[0] = train.taken[i - 1].end - begin
    return train.out.at + begin


cdef inline int64_t first_wait(Train train, int k) noexcept:
    """The last wait of the first flit of a train that arrives at link `k`."""
    cdef int m
    cdef Line* lines = view(train, k, &m)
    return wait_of(lines, m, 0)


cdef Train part_from(Train train, int k):
    """Split off the part of a train from link `k` on."""
    cdef int first = k - train.k, i, m, begin
    cdef Line* lines
    cdef Link link
    if not first:
        return train
    cdef Train part = new_train(
        train.links, k, train.n, train.size, train.key, train.number, train.fn, train.arg, train.each
    )
    cdef Taken* taken
    lines = view(train, k, &m)
    for i in range(m):
        add(&part.lines, lines[i].a, lines[i].d, lines[i].wait)
    begin = train.taken[first - 1].end
    for i in range(begin, train.out.n):
        add(&part.out, train.out.at[i].a, train.out.at[i].d, train.out.at[i].wait)
    for i in range(first, train.stops):
        taken = &train.taken[i]
        stop(part, taken.free, taken.key, taken.wait, taken.end - begin)
    train.out.n, train.stops = begin, first
    part.child, part.delivered, train.child = train.child, train.delivered, part
    for i in range(k, k + part.stops):
        link = <Link>train.links[i]
        if link.claim_train is train:
            link.claim_train = part
    return part


cdef inline int stop(Train train, int64_t free, int64_t key, int64_t wait, int end) except -1:
    """Record the reservation of one more link."""
    if train.stops == train.room:
        more_room(<void**>&train.taken, &train.room, sizeof(Taken))
    cdef Taken* taken = &train.taken[train.stops]
    taken.free, taken.key, taken.wait, taken.end = free, key, wait, end
    train.stops += 1
    return 0


@cython.final
@cython.freelist(64)
cdef class Flit:
    """A flit that reaches link `k` of `links` next, where flits are traced or processed by a component one by one."""


# --------------------------------------------------------------------------------------------------------- calendar


@cython.final
cdef class Core:
    """The calendar of one machine, and the movement of flits.

    `now` is in ps; `events` counts processed entries, `reservations` the flits served by links. With `hops` (a list)
    every service of a flit is kept. With `live`, links keep track of gaps ahead of the clock, for `busy_by`. `waits`
    records where messages waited. `running` is the program that runs now.

    Entries of each SIP have a lane, and all others lane 0. Lanes take turns (`turn`), each up to `limit`: what happens in one
    reaches another only over a link between them, `lookahead` later, and a SIP's state is in the cache during its turn. While
    a SIP may affect another one without a message (`coupled`), the lanes are `united`: their entries are in one calendar, that
    of lane 0. `base` is a time that every lane has reached (docs/decisions/0116).

    Of the trains and flits on the way over a link only the first has an entry in a calendar; those of the others follow it
    in a list (`arrivals`, docs/decisions/0118).

    An entry is processed at a place: its time, its priority, and its order among those of the same time and priority
    (see `_python_core`). `latest` is the last place of this instant that anything has reached: a flit without latency
    may still arrive at an earlier one.
    """

    def __cinit__(self):
        self.number, self.objects, self.free_arrival = 1, [], -1
        self.latest.t = self.latest.priority = self.latest.order = -1
        self.split(1, LIMIT)

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_lanes):
            PyMem_Free(self.lanes[i].calendar.soon.at)
            PyMem_Free(self.lanes[i].calendar.far.at)
            PyMem_Free(self.lanes[i].calendar.later)
        PyMem_Free(self.lanes)
        PyMem_Free(self.firsts)
        PyMem_Free(self.spare)
        PyMem_Free(self.arrivals)
        PyMem_Free(self.scratch.at)

    def split(self, int lanes, int64_t lookahead_ps):
        cdef int i
        PyMem_Free(self.lanes)
        PyMem_Free(self.firsts)
        self.lanes = <Lane*>PyMem_Malloc(lanes * sizeof(Lane))
        self.firsts = <int64_t*>PyMem_Malloc(lanes * sizeof(int64_t))
        if self.lanes == NULL or self.firsts == NULL:
            raise MemoryError()
        memset(self.lanes, 0, lanes * sizeof(Lane))
        for i in range(lanes):
            self.lanes[i].calendar.free, self.lanes[i].calendar.next = -1, LIMIT
            self.firsts[i] = LIMIT
        self.n_lanes, self.lookahead, self.united = lanes, lookahead_ps, True
        self.calendar = &self.lanes[0].calendar
        self.couple(0)

    def couple(self, int more):
        self.coupled += more
        # Another limit makes `drain` call `turn`.
        self.limit.t, self.limit.priority, self.limit.order = LIMIT if self.n_lanes == 1 else 0, -1, -1

    cdef int outside(self) except -1:
        """Unite the lanes for good, as a message begins outside of its own."""
        cdef int i
        for i in range(self.n_lanes):
            if not self.united and i != self.lane and self.lanes[i].now > self.now:
                raise StateError(
                    f"a message begins at {self.now} ps, but SIPs have been simulated up to {self.lanes[i].now} ps; "
                    "begin with a process (`engine.env.process`), which keeps SIPs together"
                )
        self.couple(1)
        return 0

    cdef int unite(self) except -1:
        """Move the entries of all lanes to the first one."""
        cdef int i
        cdef Entry entry
        for i in range(1, self.n_lanes):
            while pop(&self.lanes[i].calendar, &entry):
                add_entry(&self.lanes[0].calendar, &entry)
        self.lane, self.calendar, self.united = 0, &self.lanes[0].calendar, True
        return 0

    cdef int separate(self) except -1:
        """Move all entries to their lanes."""
        cdef int i
        cdef Entry entry
        cdef Heap all_
        memset(&all_, 0, sizeof(Heap))
        while pop(&self.lanes[0].calendar, &entry):
            insert(&all_, &entry)
        for i in range(all_.n):
            add_entry(&self.lanes[all_.at[i].lane].calendar, &all_.at[i])
        PyMem_Free(all_.at)
        for i in range(self.n_lanes):
            self.lanes[i].now, self.lanes[i].latest = self.now, self.latest
            self.firsts[i] = first_time(&self.lanes[i].calendar)
        self.lane, self.calendar, self.united = 0, &self.lanes[0].calendar, False
        return 0

    def __len__(self):
        cdef int i, n = self.n_arrivals
        cdef Calendar* calendar
        for i in range(self.n_lanes):
            calendar = &self.lanes[i].calendar
            n += calendar.soon.n + calendar.n_later + calendar.far.n
        return n

    def clear(self):
        cdef int i
        cdef Entry entry
        for i in range(self.n_lanes):
            while pop(&self.lanes[i].calendar, &entry):
                if entry.link != NULL:
                    (<Link>entry.link).coming = 0
            self.firsts[i] = LIMIT
        self.n_spare = self.n_arrivals = 0
        self.free_arrival = -1
        self.objects.clear()

    def peek(self):
        cdef int64_t t = LIMIT
        cdef int i
        for i in range(self.n_lanes):
            t = min(t, first_time(&self.lanes[i].calendar))
        return t if t < LIMIT else float("inf")

    cdef int enter(self, int lane) noexcept:
        """Continue with another lane, at its time."""
        cdef Lane* left = &self.lanes[self.lane]
        if not self.united:
            left.now, left.latest = self.now, self.latest
            self.firsts[self.lane] = first_time(&left.calendar)
            self.calendar = &self.lanes[lane].calendar
            self.now, self.latest = self.lanes[lane].now, self.lanes[lane].latest
        self.lane = lane
        return 0

    cdef bint turn(self) except -1:
        """Go to a lane with entries before the limit, which moves if there is none; return False if all are empty."""
        cdef int i, n = self.n_lanes
        cdef int64_t t = LIMIT
        if n == 1:
            return False
        if self.coupled:
            if not self.united:
                self.unite()
            self.limit.t = LIMIT
            return self.ready()
        if self.united:
            self.separate()
        for i in range(self.lane + 1, n):
            if self.firsts[i] < self.limit.t:
                self.enter(i)
                return self.ready()
        self.enter(0)
        for i in range(n):
            t = min(t, self.firsts[i])
        if t == LIMIT:  # the time of all is that of the last entry
            for i in range(n):
                self.now = max(self.now, self.lanes[i].now)
            for i in range(n):
                self.lanes[i].now = self.now
            return False
        self.base, self.limit.t, self.now = t, t + self.lookahead, max(self.now, t)
        i = 0
        while self.firsts[i] >= self.limit.t:
            i += 1
        self.enter(i)
        return self.ready()

    cdef int keep(self, object x) except -1:
        """Store an object for an entry; return its number."""
        if not self.n_spare:
            self.objects.append(x)
            return len(self.objects) - 1
        # The list's reference to None becomes one to x.
        self.n_spare -= 1
        Py_DECREF(None)
        Py_INCREF(x)
        PyList_SET_ITEM(self.objects, self.spare[self.n_spare], x)
        return self.spare[self.n_spare]

    cdef object give(self, int i):
        """Remove a stored object and return it."""
        x = <object>PyList_GET_ITEM(self.objects, i)
        Py_INCREF(None)
        PyList_SET_ITEM(self.objects, i, None)
        Py_DECREF(x)
        if self.n_spare == self.room_spare:
            more_room(<void**>&self.spare, &self.room_spare, sizeof(int))
        self.spare[self.n_spare] = i
        self.n_spare += 1
        return x

    cdef int push(self, int64_t t, int64_t priority, int64_t order, int kind, x, y) except -1:
        cdef Entry entry
        if t >= LIMIT:
            raise _too_late(t)
        if t < self.now:
            raise ValueError(f"{t} ps has passed: it is {self.now} ps")
        entry.place.t, entry.place.priority, entry.place.order = t, priority, order
        entry.kind, entry.lane, entry.link = kind, self.lane, NULL
        entry.x = self.keep(x)
        entry.y = self.keep(y) if y is not None else -1
        if t < self.firsts[self.lane]:
            self.firsts[self.lane] = t
        return add_entry(self.calendar, &entry)

    cdef inline int push_train(
        self, Link link, int64_t t, int64_t number, int kind, Train train, int k=-1, int64_t wait=UNKNOWN
    ) except -1:
        """Push an entry of a train that is on the way over `link`; `k` is its next link."""
        cdef Entry entry
        cdef int64_t order = link.base + number
        if t >= LIMIT or t < 0:
            raise _too_late(t)
        entry.place.t, entry.place.priority, entry.place.order = t, link.priority, order
        entry.kind, entry.lane, entry.x, entry.y, entry.wait = kind, link.beyond, <int64_t><void*>train, k, wait
        if not train.entries:
            train.place = self.keep(train)
        train.entries += 1
        entry.link = NULL
        if not link.coming or t > link.end_t or t == link.end_t and order > link.end_order:
            link.end_t, link.end_order = t, order
            link.coming += 1
            if link.coming > 1:
                return self.follow(link, &entry)
            entry.link = <void*>link
        if self.united:
            return add_entry(self.calendar, &entry)
        if t < self.firsts[link.beyond]:
            self.firsts[link.beyond] = t
        return add_entry(&self.lanes[link.beyond].calendar, &entry)

    cdef int follow(self, Link link, Entry* entry) except -1:
        """Add an entry behind the others of its link."""
        cdef Arrival* arrival
        cdef int i = self.free_arrival
        if i < 0:  # all are taken
            i = self.n_arrivals
            if i == self.room_arrivals:
                more_room(<void**>&self.arrivals, &self.room_arrivals, sizeof(Arrival))
        else:
            self.free_arrival = self.arrivals[i].next
        self.n_arrivals += 1
        arrival = &self.arrivals[i]
        arrival.t, arrival.order, arrival.wait = entry.place.t, entry.place.order, entry.wait
        arrival.kind, arrival.train, arrival.y = entry.kind, <void*>entry.x, entry.y
        if link.coming == 2:
            link.first = i
        else:
            self.arrivals[link.end].next = i
        link.end = i
        return 0

    cdef int next_of(self, Link link) except -1:
        """Add the next entry of a link whose first one has been removed."""
        cdef Arrival* arrival
        cdef Entry entry
        cdef int i = link.first
        link.coming -= 1
        if not link.coming:
            return 0
        arrival = &self.arrivals[i]
        entry.place.t, entry.place.priority, entry.place.order = arrival.t, link.priority, arrival.order
        entry.kind, entry.lane, entry.x, entry.y = arrival.kind, link.beyond, <int64_t>arrival.train, arrival.y
        entry.wait, entry.link = arrival.wait, <void*>link
        link.first, arrival.next, self.free_arrival = arrival.next, self.free_arrival, i
        self.n_arrivals -= 1
        return add_entry(self.calendar, &entry)

    cdef bint ready(self) except -1:
        """Whether the lane has an entry before the limit, which is then the first of `soon`."""
        if is_due(self.calendar) and self.calendar.next << SLOT_BITS < self.limit.t:
            go_on(self.calendar)
        return self.calendar.soon.n and before(&self.calendar.soon.at[0].place, &self.limit)

    cpdef call_at(self, int64_t t, fn, arg=None):
        self.scheduled += 1
        self.push(t, NORMAL, self.scheduled, CALL, fn, arg)

    cpdef call_last(self, int64_t t, fn, arg=None):
        self.scheduled += 1
        self.push(t, LAST, self.scheduled, CALL, fn, arg)

    cpdef call_ordered(self, int64_t t, int64_t key, fn, arg):
        self.push(t, ARRIVAL, key, CALL, fn, arg)

    cpdef wake_ordered(self, int64_t t, int64_t key, Callee callee, int what, arg):
        self.push(t, ARRIVAL, key, WAKE + what, callee, arg)

    cpdef call_after_turns(self, int64_t t, int64_t order, fn, arg):
        self.push(t, LAST + 1, order, CALL, fn, arg)

    cpdef wake_at(self, int64_t t, Callee callee, int what, arg):
        self.scheduled += 1
        self.push(t, NORMAL, self.scheduled, WAKE + what, callee, arg)

    cpdef event_at(self, int64_t t, int64_t priority, event):
        self.scheduled += 1
        self.push(t, priority, self.scheduled, EVENT, event, None)

    def drain(self, int64_t limit, until=None):
        cdef int64_t done = 0
        cdef Entry entry
        cdef object x, y
        cdef Train train
        cdef double deadline = monotonic() + SLICE_S
        if until is not None and until.callbacks is None:
            return False
        try:
            while self.ready() or self.turn():
                if done == limit:
                    return True
                if done % LOOK_EVERY == LOOK_EVERY - 1:
                    PyErr_CheckSignals()
                    if monotonic() > deadline:
                        return True
                done += 1
                entry = self.calendar.soon.at[0]
                remove(&self.calendar.soon)
                if entry.link != NULL:
                    self.next_of(<Link>entry.link)
                self.now, self.phase = entry.place.t, entry.place.priority
                if self.united:
                    self.lane = entry.lane
                if ADVANCE <= entry.kind and entry.kind <= END:
                    train = <Train><void*>entry.x
                    if entry.kind == HOP or entry.kind == PASS:
                        self.hop(train, entry.kind, entry.y, entry.wait, entry.place.priority, entry.place.order)
                    elif entry.kind == ADVANCE:
                        self.advance(train)
                    train.entries -= 1
                    if not train.entries:
                        self.give(train.place)
                    if entry.kind == LAND or entry.kind == END:
                        self.reached(self.now, entry.place.priority, entry.place.order)
                        self.end(front_of(train) if entry.kind == END else train, entry.kind == END)
                    continue
                x = self.give(entry.x)
                if entry.kind == EVENT:
                    callbacks, x.callbacks = x.callbacks, None
                    for callback in callbacks:
                        callback(x)
                    if not x._ok and not hasattr(x, "_defused"):
                        raise x._value
                    if until is not None and until.callbacks is None:
                        return False
                else:
                    y = self.give(entry.y) if entry.y >= 0 else None
                    if entry.kind >= WAKE:
                        (<Callee>x).woken(entry.kind - WAKE, y)
                    elif entry.kind == CALL:
                        x(y)
                    elif entry.kind == RELEASE:
                        (<HbmSlice>y).release(<Ready>x)
                    elif entry.kind == ACKNOWLEDGE:
                        (<HbmSlice>y).acknowledge(<Transaction>x)
                    elif entry.kind == EMERGE:
                        self.emerge(<Flit>x, entry.place.priority, entry.place.order)
                    elif entry.kind == REACH:
                        self.reach(<Flit>x, entry.place.priority, entry.place.order)
                    else:
                        self.reached(self.now, entry.place.priority, entry.place.order)
                        self.note((<Flit>x).key, (<Flit>x).wait)
                        self.call((<Flit>x).fn, (<Flit>x).arg)
            return False
        finally:
            self.events += done
            self.enter(0)

    cdef inline int call(self, fn, arg) except -1:
        if isinstance(fn, Callee):
            (<Callee>fn).landed(arg)
        else:
            fn(arg)
        return 0

    def busy_by(self, links):
        """Busy time of each link until now [ps], int64; the core must be `live`."""
        cdef int i, n = len(links)
        cdef int64_t[::1] busy_ps
        found = np.empty(n, np.int64)
        busy_ps = found
        for i in range(n):
            busy_ps[i] = (<Link?>links[i]).busy_by(self.now)
        return found

    # ---------------------------------------------------------------------------------------------------- movement

    cpdef put(self, tuple links, int64_t count, int64_t size, int64_t key, fn, arg, bint each=False):
        cdef Flit flit
        cdef int64_t wait
        if count < 1 or size < 0:
            raise ValueError(f"cannot send {count} flits of {size} bytes")
        if (<Link>links[0]).lane != self.lane and not self.coupled:
            self.outside()
        if not self.singly(links):
            self.start(links, count, size, key, fn, arg, each, self.now, 0)
            return
        wait = self.waits.of(key) if self.waits is not None else UNKNOWN
        for left in range(count - 1, -1, -1):
            flit = Flit.__new__(Flit)
            flit.links, flit.size, flit.key, flit.wait = links, size, key, wait
            flit.fn, flit.arg, flit.each = None if left else fn, arg, each
            self.reach(flit, ARRIVAL, key)

    cdef Train start(self, tuple links, int64_t count, int64_t size, int64_t key, fn, arg, bint each, int64_t a, int64_t d):
        """Send flits as a train: the first one at `a`, each next one `d` later."""
        cdef Train train = new_train(links, 0, count, size, key, 0, fn, arg, each)
        cdef Link link = <Link>links[0]
        if link.last >= self.now:  # behind a switch, whose sums begin on links that other messages pass
            self.make_way(link, self.now, self.latest.priority, self.latest.order)
            link.claim_train, link.last = None, -1
        add(&train.lines, a, d, self.waits.of(key) if self.waits is not None else UNKNOWN)
        self.take(train, 0)
        return train

    cdef inline int64_t waited(self, Link link, int64_t key, int64_t wait, int64_t arrival, int64_t start) except? -1:
        cdef int64_t front = -1
        if wait != UNKNOWN:
            if link.served_key == key and link.free >= arrival:
                wait, arrival = link.served_wait, link.free
            elif link.free > arrival:
                front = link.served_key
            if start > arrival:
                wait = self.waits.add(wait, link.number, front, start - arrival)
        link.served_key, link.served_wait = key, wait
        return wait

    cdef inline int note(self, int64_t key, int64_t wait) except -1:
        """Record the last wait of a message that has arrived."""
        if wait > 0:
            self.waits.landed(key, wait)
        return 0

    cdef int turned(self, Link link, int64_t key, int64_t asked, int64_t t) except -1:
        cdef int64_t wait, front
        if self.waits is not None and asked < t:
            wait = self.waits.of(key)
            if wait != UNKNOWN:
                front = link.served_key if link.free > asked else -1
                self.waits.landed(key, self.waits.add(wait, link.number, front, t - asked))
        return 0

    cdef bint singly(self, tuple links) except -1:
        """Whether flits take these links one by one: they are traced, processed by a component, or need credits."""
        cdef int i
        if self.hops is not None:
            return True
        if hooked or self.credits:
            for i in range(len(links)):
                if (<Link>links[i]).hook is not None or (<Link>links[i]).legs is not None:
                    return True
        return False

    cdef int reach(self, Flit flit, int64_t priority, int64_t order) except -1:
        cdef Link link = <Link>flit.links[flit.k]
        cdef int64_t t = self.now, start, end
        if link.legs is not None:
            self.reached(t, priority, order)
            (<Callee>link.legs[<size_t><void*>flit.links]).landed(flit)
            return 0
        if flit.k:
            self.make_way(link, t, priority, order)
        link.claim_train, link.last = None, -1
        start = t if t > link.free else link.free
        flit.wait = self.waited(link, flit.key, flit.wait, t, start)
        link.free = end = start + link.ps(flit.size)
        self.reservations += 1
        link.busy_ps += end - start
        if self.hops is not None:
            self.hops.append(Hop(flit.key, link.name, flit.size, t, start, end))
        t = end + link.lat
        if link.hook is not None:
            t += link.hook(flit.size, t)
            if t < link.behind:  # the component behind it is FIFO, too
                t = link.behind
            link.behind = t
        flit.k += 1
        order = link.base + self.number
        self.number += 1
        if flit.k < len(flit.links):
            self.push(t, link.priority, order, REACH, flit, None)
            return 0
        if flit.each and link.memory is not None:
            link.memory.comes(t, order, flit.arg)
        if flit.fn is not None:
            self.push(t, link.priority, order, ARRIVE, flit, None)
        return 0

    cdef int arrive_at(self, int64_t t, int64_t priority, int64_t base, Flit flit) except -1:
        self.number += 1
        return self.push(t, priority, base + self.number - 1, EMERGE, flit, None)

    cdef int emerge(self, Flit flit, int64_t priority, int64_t order) except -1:
        cdef Link link
        if flit.k < len(flit.links):
            return self.reach(flit, priority, order)
        self.reached(self.now, priority, order)
        if flit.each:
            link = <Link>flit.links[flit.k - 1]
            if link.memory is not None:
                link.memory.comes(self.now, order, flit.arg)
        if flit.fn is not None:
            self.note(flit.key, flit.wait)
            self.call(flit.fn, flit.arg)
        return 0

    cdef int64_t served(self, Link link, Flit flit, int64_t arrival, int64_t start, int64_t least_ps) except -1:
        cdef int64_t d = link.ps(flit.size)
        if self.live and start > self.now:
            link.idle(self.now, link.free, start - link.free, start - link.free, 1)
        flit.wait = self.waited(link, flit.key, flit.wait, arrival + least_ps, start)
        link.free = start + d
        link.busy_ps += d
        self.reservations += 1
        if self.hops is not None:
            self.hops.append(Hop(flit.key, link.name, flit.size, arrival, start, start + d))
        return d

    cdef inline int reached(self, int64_t t, int64_t priority, int64_t order) except -1:
        """Advance `latest` to a place of this instant."""
        cdef Place place
        place.t, place.priority, place.order = t, priority, order
        if self.latest.t != t or before(&self.latest, &place):
            self.latest = place
        return 0

    cdef int make_way(self, Link link, int64_t t, int64_t priority, int64_t order) except -1:
        """Serve the reservations of `link` before this place, and cancel those after it."""
        cdef int64_t come
        cdef Train train
        cdef Link previous
        cdef Place place
        cdef int m, k
        cdef Line* lines
        self.reached(t, priority, order)
        while t <= link.last:
            train, k = link.claim_train, link.claim_k
            previous = <Link>train.links[k - 1]
            place.t, place.priority, place.order = t, previous.priority, previous.base + link.claim_number
            lines = view(train, k, &m)
            come = come_before(lines, m, train.n, t + 1 if before(&place, &self.latest) else t)
            if come == train.n:
                return 0
            link.backoff = BACKOFF
            self.requeue(part_from(train, k), come, link.claim_number)
            if come:
                return 0
        return 0

    cdef int requeue(self, Train train, int64_t j, int64_t number) except -1:
        """Requeue the flits of a train from `j` on as another train."""
        cdef Train rest = new_train(
            train.links, train.k, train.n - j, train.size, train.key, number, train.fn, train.arg, train.each
        )
        cdef int i
        cdef Link previous
        cdef Line* line
        for i in range(train.lines.n):
            line = &train.lines.at[i]
            add(&rest.lines, line.a + j * line.d, line.d, line.wait)
        self.reservations -= self.cut(train, train.left + j)
        train.rest = rest
        if j:
            rest.before = train
        previous = <Link>rest.links[rest.k - 1]
        return self.push_train(previous, latest(rest.lines.at, rest.lines.n, 0), number, ADVANCE, rest)

    cdef int64_t cut(self, Train train, int64_t keep) except -1:
        """Cancel all but the first `keep` flits of a train and its `rest`; return the number of cancelled reservations.

        The cancelled flits have not arrived yet, here or further on.
        """
        cdef Train gone, child
        cdef int i, m, come_m, begin = 0
        cdef int64_t given_back, unsent
        cdef Line* come
        cdef Line* out
        cdef Link link
        cdef Claim claim
        cdef Taken* taken
        while train is not None and keep >= train.left + train.n:
            keep -= train.left + train.n
            train = train.rest
        if train is None:
            return 0
        keep -= train.left
        gone, train.rest = train.rest, None
        while gone is not None:
            gone.n, gone.before = 0, None
            gone = gone.rest
        unsent = train.n - keep
        given_back = unsent * train.stops
        train.n, train.fn = keep, None
        come, come_m = train.lines.at, train.lines.n
        for i in range(train.stops):
            link = <Link>train.links[train.k + i]
            out, m = train.out.at + begin, train.taken[i].end - begin
            if keep:
                link.free = latest(out, m, keep - 1) - link.lat
                link.served_key, link.served_wait = train.key, wait_of(out, m, keep - 1)
            else:
                taken = &train.taken[i]
                link.free, link.served_key, link.served_wait = taken.free, taken.key, taken.wait
            link.busy_ps -= unsent * link.ps(train.size)
            link.forget_idle(link.free)
            if link.claim_train is train:
                if keep:
                    link.last = latest(come, come_m, keep - 1)
                elif link.claims is not None:
                    claim, link.claims = link.claims, link.claims.before
                    link.claim_train, link.claim_k, link.claim_number = claim.train, claim.k, claim.number
                    link.last = claim.last
                else:
                    link.claim_train, link.last = None, -1
            come, come_m = out, m
            begin = train.taken[i].end
        child = train.child
        return given_back + (self.cut(child, keep) if child is not None else 0)

    cdef int advance(self, Train train) except -1:
        """Reserve links for a train whose first flit has reached the next one."""
        cdef int k
        cdef Link link, previous
        cdef Train before
        cdef int64_t number
        train = front_of(train)
        if not train.n:
            return 0
        k, number = train.k + train.stops, train.number
        link, previous = <Link>train.links[k], <Link>train.links[k - 1]
        if train.n > 1:
            self.make_way(link, self.now, previous.priority, previous.base + number)
            # Flits take links one by one as long as other traffic comes between them: unless the flit before, or the train
            # that they were split off from, took the link last.
            before = train if train.apart else train.before
            if before is not None and not train.stops and link.claim_train is not before:
                return self.leave(train, link, previous)
        train.before, train.apart = None, False
        if train.n > 1:
            if link.backoff:
                link.backoff -= 1
            return self.take(train, k)
        self.hop(train, HOP, k, first_wait(train, k), previous.priority, previous.base + number)
        link.claim_train, link.claim_k, link.claim_number, link.last = train, k, number, -1
        return 0

    cdef int leave(self, Train train, Link link, Link previous) except -1:
        """Let the first flit of a train take its link alone; the others follow at their arrivals."""
        cdef int64_t wait = first_wait(train, train.k), number = train.number, order = previous.base + number
        cdef int i
        for i in range(train.lines.n):
            train.lines.at[i].a += train.lines.at[i].d
        train.n -= 1
        train.left += 1
        train.before, train.apart = None, True
        self.push_train(previous, latest(train.lines.at, train.lines.n, 0), number, ADVANCE, train)
        self.hop(train, PASS, train.k, wait, previous.priority, order)
        link.claim_train, link.claim_k, link.claim_number, link.last = train, train.k, number, -1
        return 0

    cdef int take(self, Train train, int k) except -1:
        """Reserve link `k`, and those behind it that other traffic can reach only over the previous link."""
        cdef tuple links = train.links
        cdef int64_t n = train.n, size = train.size, now = self.now, more = n - 1
        cdef int64_t head, tail, step = 0, free, d, came = train.number, number, start, key, wait, come_wait, served_wait
        cdef int first = k, last = len(links) - 1, m, i, begin
        cdef bint single, covered
        cdef Claim claim
        cdef Line line
        cdef Line* lines
        cdef Link link = <Link>links[k], previous
        lines = view(train, k, &m)
        head, tail = latest(lines, m, 0), latest(lines, m, more)
        single = m == 1
        if single:
            step = lines[0].d
        wait = wait_of(lines, m, 0)
        number = self.number
        self.number += 1
        if not train.room:
            more_room(<void**>&train.taken, &train.room, sizeof(Taken), last + 1 - k)
            more_room(<void**>&train.out.at, &train.out.room, sizeof(Line), last + 1 - k)
        while True:
            free = link.free
            if k and link.merges:
                if link.last >= now:
                    # The previous train has flits to arrive, and regains the link if this one gives it back.
                    claim = link.claims
                    if claim is None or claim.last >= now:
                        claim = Claim.__new__(Claim)
                        claim.before, link.claims = link.claims, claim
                    else:
                        claim.before = None  # all flits of the old ones have arrived
                    claim.train, claim.k, claim.number = link.claim_train, link.claim_k, link.claim_number
                    claim.last = link.last
                    while claim.before is not None and claim.before.last >= now:
                        claim = claim.before
                    claim.before = None
                link.claim_train, link.claim_k, link.claim_number, link.last = train, k, came, tail
            came = number
            d = link.flit_ps if size == link.flit_bytes else link.ps(size)
            start = free if free > head else head
            if start + <double>n * <double>(d if d > step else step) + link.lat >= <double>LIMIT:
                raise _too_late(start + <double>n * <double>d + link.lat)
            key, served_wait, come_wait = link.served_key, link.served_wait, wait
            if wait == UNKNOWN:
                link.served_key, link.served_wait = train.key, UNKNOWN
            else:
                wait = self.waited(link, train.key, wait, head, start)
            if free <= head and single and (step <= d or wait == come_wait):
                head += d + link.lat
                if step < d:
                    step = d
                tail = head + more * step
                add(&train.out, head, step, wait)
            else:
                begin = train.out.n
                # Adding to `out` may move what `lines` points to.
                lines = view(train, k, &m)
                self.scratch.n = 0
                covered = False
                for i in range(m):
                    line = lines[i]
                    if line.d > d and line.a + more * (line.d - d) > start:
                        covered = covered or (line.a == start and line.wait == wait)
                        add(&self.scratch, line.a + d + link.lat, line.d, line.wait)
                if not covered:
                    add(&train.out, start + d + link.lat, d, wait)
                for i in range(self.scratch.n):
                    add(&train.out, self.scratch.at[i].a, self.scratch.at[i].d, self.scratch.at[i].wait)
                lines, m = train.out.at + begin, train.out.n - begin
                head, tail, wait = latest(lines, m, 0), latest(lines, m, more), wait_of(lines, m, 0)
                single = m == 1
                if single:
                    step = lines[0].d
            stop(train, free, key, served_wait, train.out.n)
            link.free = tail - link.lat
            link.served_wait = wait_of(train.out.at + train.out.n - m, m, more)
            link.busy_ps += n * d
            if self.live:
                if start > free and start > now:
                    link.idle(now, free, start - free, start - free, 1)
                if m > 1 or step > d:
                    link.idle_between(now, train.out.at + train.out.n - m, m, n, d)
            if k == last:
                if train.each and link.memory is not None:
                    link.memory.comes(-1, link.base + number, train)
                if train.fn is not None:
                    self.push_train(link, tail, number, END, train)
                break
            k += 1
            previous, link = link, <Link>links[k]
            if link.lane != self.lane and not self.united:
                now = self.base
            if link.merges:
                if now < head and not link.backoff and (size or link.lat):
                    if link.last < now:
                        continue
                    if link.claim_train is not None and link.claim_train.links[link.claim_k - 1] is previous:
                        continue
                self.push_train(previous, head, number, ADVANCE, train)
                k -= 1
                break
        train.number = number
        self.reservations += (k + 1 - first) * n
        return 0

    cdef int hop(self, Train train, int kind, int k, int64_t wait, int64_t priority, int64_t order) except -1:
        """Reserve links for a flit that reaches link `k` from a place: the last of a train (HOP), or another (PASS)."""
        cdef tuple links = train.links
        cdef int first = k, n = len(links)
        cdef int64_t size = train.size, t = self.now, now = self.now, start, end
        cdef Link link, previous
        while True:
            link = <Link>links[k]
            if t <= link.last:
                self.make_way(link, t, priority, order)
            link.claim_train, link.last = None, -1
            if link.backoff:
                link.backoff -= 1
            start = link.free
            if start < t:
                if t > now and self.live:
                    link.idle(now, start, t - start, t - start, 1)
                start = t
            wait = self.waited(link, train.key, wait, t, start)
            end = start + link.ps(size)
            link.free = end
            link.busy_ps += end - start
            start = end + link.lat
            if start == t:
                self.reached(t, priority, order)
            t = start
            if t >= LIMIT:
                raise _too_late(t)
            priority, order = link.priority, link.base + self.number
            self.number += 1
            k += 1
            if k == n:
                if train.each and link.memory is not None:
                    link.memory.comes(t, order, train.arg)
                if kind == HOP and train.fn is not None:
                    train.wait = wait
                    self.push_train(link, t, self.number - 1, LAND, train)
                break
            # Nothing can intervene before the next entry.
            previous, link = link, <Link>links[k]
            if link.merges and (t >= self.limit.t or any_by(self.calendar, t)):
                self.push_train(previous, t, self.number - 1, kind, train, k, wait)
                break
        self.reservations += k - first
        return 0

    cdef int end(self, Train train, bint as_train) except -1:
        """Complete a train at its end, unless it has been replaced; `as_train`: it took the last link as a train."""
        cdef int m
        cdef Line* lines
        if train.fn is not None:
            if as_train:
                lines = view(train, len(train.links), &m)
                train.wait = wait_of(lines, m, train.n - 1)
            self.note(train.key, train.wait)
            self.call(train.fn, train.arg)
        if not train.each:
            # All its flits have arrived; links that it took last still refer to it.
            train.out.n = train.stops = 0
        return 0


# --------------------------------------------------------------------------------------------------------- arbiters


@cython.final
@cython.freelist(64)
cdef class Waiting:
    """A message with `count` flits left to send at an arbiter."""


@cython.final
cdef class Arbiter:
    """Two request queues in front of a PE's first link: bulk traffic and queue traffic alternate (M8.6).

    A turn is a chunk of `chunk_bytes` of one message, at least one flit; requests of the instant at which a turn begins
    take part in it. Nothing else uses the link. While the other queue is empty a message gets the link for all of its
    flits, and gives back what is behind the current chunk when a message enters the other queue.
    """

    def __init__(self, Core core, Link link, int64_t chunk_bytes):
        self.core, self.link, self.nbytes = core, link, chunk_bytes
        link.arbiter = self
        self.chunk = max(1, chunk_bytes // link.flit_bytes)
        self.bulk, self.queue = [], []
        self.turn_ps, self.last = -1, QUEUE_

    cpdef send(self, int kind, Route route, int64_t nbytes, int64_t key, fn, arg, bint each=False):
        cdef int64_t count = 1, size = nbytes
        if nbytes >= route.flit_bytes:
            count, size = route.flits(nbytes), route.flit_bytes
        route.nbytes += nbytes
        route.count_flits(count, size)
        self.start(kind, route, count, size, key, fn, arg, each)

    cpdef start(self, int kind, Route route, int64_t count, int64_t size, int64_t key, fn, arg, bint each):
        cdef Waiting message
        cdef bint idle = self.turn_ps < 0 and self.link.free <= self.core.now and not self.link.pending
        if idle and count <= self.chunk:
            # The usual case: nothing waits, and one turn suffices.
            self.granted, self.last = None, kind
            self.core.put(route.links, count, size, key, fn, arg, each)
            return
        message = Waiting.__new__(Waiting)
        message.kind, message.route, message.count, message.size, message.key = kind, route, count, size, key
        message.fn, message.arg, message.each, message.asked = fn, arg, each, self.core.now
        if idle:
            self.grant(message)
            return
        self.waiting(kind).append(message)
        if self.granted is not None and self.granted.kind != kind:
            self.cut()
        self.schedule()

    cdef inline list waiting(self, int kind):
        return self.queue if kind == QUEUE_ else self.bulk

    cdef int schedule(self) except -1:
        cdef int64_t t
        if (self.bulk or self.queue) and not self.link.pending:
            t = max(self.link.free, self.core.now)
            if t != self.turn_ps:
                self.turn_ps = t
                self.core.call_last(t, self.turn, t)
        return 0

    def turn(self, int64_t t):
        """Grant the turn that is scheduled for now."""
        cdef int kind
        if t != self.turn_ps:
            return
        self.turn_ps = -1
        # Everything else of this instant has arrived, so flits of this turn overtake none of it, even without latency.
        self.core.reached(t, LAST, 0)
        kind = 1 - self.last if self.bulk and self.queue else QUEUE_ if self.queue else BULK_
        self.grant(<Waiting>self.waiting(kind).pop(0))

    cdef int grant(self, Waiting message) except -1:
        """Grant the link for all flits if no message of the other kind waits, else for a chunk or alternately."""
        cdef int64_t count = message.count, free = self.link.free, now = self.core.now
        cdef list others = self.waiting(1 - message.kind)
        cdef bint singly = self.core.singly(message.route.links)
        if others and not singly and self.alternate(message, others):
            return 0
        if others or singly:
            count = min(count, self.chunk)
        self.first_turn(message, now)
        self.granted_start = free if free > now else now
        self.granted, self.granted_count, self.last = message, count, message.kind
        message.count -= count
        if message.count:
            self.waiting(message.kind).insert(0, message)
        fn = None if message.count else message.fn
        if singly:
            self.train = None
            self.core.put(message.route.links, count, message.size, message.key, fn, message.arg, message.each)
        else:
            self.train = self.core.start(
                message.route.links, count, message.size, message.key, fn, message.arg, message.each, now, 0
            )
        return self.schedule()

    cdef int first_turn(self, Waiting message, int64_t t) except -1:
        """Record a message's wait for its first turn, at `t`."""
        if message.asked >= 0:
            self.core.turned(self.link, message.key, message.asked, t)
            message.asked = -1
        return 0

    cdef bint alternate(self, Waiting first, list others) except -1:
        """Alternate flits of two messages whose routes differ behind the link until one is complete, if possible.

        Later arrivals do not change these turns. Return whether it is possible.
        """
        cdef Waiting second = <Waiting>others[0], message
        cdef Link link = self.link
        cdef int64_t rounds, begin, t, after, both
        cdef bint apart = first.route.links[:2] != second.route.links[:2]
        if self.chunk > 1 or not apart or self.core.singly(second.route.links):
            return False
        others.pop(0)
        rounds = min(first.count, second.count)
        begin = max(self.core.now, link.free)
        after, both = link.ps(first.size), link.ps(first.size) + link.ps(second.size)
        for message, t in ((first, begin), (second, begin + after)):
            link.free = t
            self.first_turn(message, t)
            message.count -= rounds
            if message.count:
                self.waiting(message.kind).insert(0, message)
            fn = None if message.count else message.fn
            self.core.start(message.route.links, rounds, message.size, message.key, fn, message.arg, message.each, t, both)
        link.forget_idle(begin)  # the flits of the other message fill the gaps
        self.granted, self.train, self.last = second, None, second.kind
        self.schedule()
        return True

    cdef int cut(self) except -1:
        """Cancel the reservations behind the current chunk."""
        cdef Waiting message = self.granted
        cdef int64_t d, started, keep, rest, passed
        if self.train is None or self.granted_count <= self.chunk:
            return 0
        d = self.link.ps(message.size)
        passed = self.core.now - self.granted_start
        # A turn that begins now is still to be granted, unless the turns of this instant are being granted.
        started = passed // d + 1 if self.core.phase == LAST else (passed + d - 1) // d
        keep = max(1, (started + self.chunk - 1) // self.chunk) * self.chunk
        rest = self.granted_count - keep
        if rest <= 0:
            return 0
        self.core.reservations -= self.core.cut(self.train, keep)
        self.granted_count = keep
        if not message.count:
            self.waiting(message.kind).insert(0, message)
        message.count += rest
        return 0


# --------------------------------------------------------------------------------------------------------- memories


cdef struct Burst:
    int64_t end
    int64_t line


cdef int by_end(const void* x, const void* y) noexcept nogil:
    cdef Burst* a = <Burst*>x
    cdef Burst* b = <Burst*>y
    if a.end != b.end:
        return -1 if a.end < b.end else 1
    return -1 if a.line < b.line else a.line > b.line


cdef inline void log(Transaction txn, int64_t arrived, Channel* channel, int64_t served) noexcept:
    txn.arrived_ps, txn.since_ps, txn.opener, txn.served_ps = arrived, channel.since, channel.key, served


@cython.final
@cython.freelist(64)
cdef class Ready:
    """The flits of a read that have not left its memory: (time, number) groups; `next` is the first one."""

    def __dealloc__(self):
        PyMem_Free(self.groups.at)


cdef class HbmSlice:
    """One slice of a cube's memory stack: bursts over interleaved channels (M4.5).

    Whole rounds of bursts over idle channels are served by arithmetic. Arrivals of writes are processed lazily, when
    another request arrives or a time is asked for. `memory` stores values; None without data.
    """

    by_flit = True

    def __cinit__(self):
        self.what, self.turns = [], []

    def __init__(self, network, Link link, hbm, memory):
        cdef int i
        self.core, self.link, self.memory = network.core, link, memory
        self.n = hbm.channels
        self.line_bits = hbm.burst_bytes.bit_length() - 1
        self.burst_ps = hbm.burst_ps
        self.turn_ps, self.access_ps = ns_to_ps(hbm.turnaround_ns), ns_to_ps(hbm.access_ns)
        self.by_rounds = hbm.burst_bytes == link.flit_bytes
        self.line_mask = hbm.burst_bytes - 1
        self.round_bytes = hbm.burst_bytes * self.n
        self.channels = <Channel*>PyMem_Malloc(self.n * sizeof(Channel))
        if self.channels == NULL:
            raise MemoryError()
        for i in range(self.n):
            self.channels[i].free = self.channels[i].since = 0
            self.channels[i].key, self.channels[i].direction = -1, NONE_
        link.memory = self

    def __dealloc__(self):
        PyMem_Free(self.channels)
        PyMem_Free(self.coming)

    @property
    def busy_ps(self):
        self.look()
        return self.served_ps // self.n

    def busy_by(self, int64_t now):
        cdef int i
        cdef int64_t ahead = 0, turn
        self.look()
        for i in range(self.n):
            ahead += max(0, self.channels[i].free - now)
        # `free` includes turnarounds ahead, during which a channel is not busy.
        self.turns = [turn for turn in self.turns if turn + self.turn_ps > now]
        for turn in self.turns:
            ahead -= turn + self.turn_ps - max(turn, now)
        return (self.served_ps - ahead) // self.n

    cdef int64_t idle_ps(self) except -1:
        """Time from which its channels are free of everything that has arrived [ps]."""
        cdef int i
        cdef int64_t t = 0
        self.look()
        for i in range(self.n):
            t = max(t, self.channels[i].free)
        return t

    # -- reads

    def on_read(self, Transaction txn):
        cdef Ready ready = Ready.__new__(Ready)
        cdef int64_t busy = self.idle_ps()
        ready.txn = txn
        if not self.rounds(txn, &ready.groups):
            self.singly(txn, &ready.groups)
        self.join(txn, &ready.groups, busy)
        txn.back.nbytes += txn.nbytes
        self.core.push(ready.groups.at[0].a, ARRIVAL, txn.key, RELEASE, ready, self)

    cdef int singly(self, Transaction txn, Lines* groups) except -1:
        """Serve bursts one by one; collect when the flits become ready."""
        cdef int64_t now = self.core.now, line, t, j, q, m, first
        cdef Burst* done
        cdef Channel* channel
        cdef list lines = None
        if txn.lines is not None:
            lines = list(txn.lines)
            m, first = len(lines), 0
        else:
            first = txn.offset >> self.line_bits
            m = ((txn.offset + txn.nbytes - 1) >> self.line_bits) + 1 - first
        done = <Burst*>PyMem_Malloc(m * sizeof(Burst))
        if done == NULL:
            raise MemoryError()
        try:
            for j in range(m):
                line = lines[j] if lines is not None else first + j
                done[j].line, done[j].end = line, self.burst(line, now, READ_, txn.key)
            qsort(done, m, sizeof(Burst), by_end)
            q = txn.back.flits(txn.nbytes)
            for j in range(1, q + 1):
                t = done[(j * m + q - 1) // q - 1].end + self.access_ps
                if groups.n and groups.at[groups.n - 1].a == t:
                    groups.at[groups.n - 1].d += 1
                else:
                    add(groups, t, 1)
            channel = &self.channels[done[m - 1].line & (self.n - 1)]
            log(txn, now, channel, groups.at[groups.n - 1].a)
        finally:
            PyMem_Free(done)
        return 0

    cdef bint rounds(self, Transaction txn, Lines* groups) except -1:
        """Serve whole rounds of consecutive lines if all channels become free together; return whether so."""
        cdef int64_t now = self.core.now, start = 0, least = LIMIT, free, end, count, i, access = self.access_ps
        cdef Channel* channel
        if not self.by_rounds or txn.lines is not None or txn.offset & self.line_mask or txn.nbytes % self.round_bytes:
            return False
        for i in range(self.n):
            channel = &self.channels[i]
            start, least = max(start, channel.free), min(least, channel.free)
            if self.turn_ps and channel.direction == WRITE_:
                return False
        if start > now and least != start:
            return False
        count = txn.nbytes // self.round_bytes
        free = max(start, now)
        end = free + count * self.burst_ps
        for i in range(self.n):
            channel = &self.channels[i]
            if channel.free < now:
                channel.since, channel.key = now, txn.key
            channel.free, channel.direction = end, READ_
        self.served_ps += count * self.n * self.burst_ps
        channel = &self.channels[((txn.offset >> self.line_bits) + count * self.n - 1) & (self.n - 1)]
        log(txn, now, channel, end + access)
        for i in range(1, count + 1):
            add(groups, free + i * self.burst_ps + access, self.n)
        return True

    cdef int join(self, Transaction txn, Lines* groups, int64_t busy) except -1:
        """Let flits queue for the link with earlier ones that keep it busy until then, if nothing else comes between them.

        Whatever has arrived before is ready when the first ones are; each channel serves what arrives later after its last
        burst. Bytes are read when the last flits are ready: a group without flits stands for these.
        """
        cdef int64_t until = LIMIT, flit_ps = (<Link>txn.back.links[0]).flit_ps, last = groups.at[groups.n - 1].a
        cdef int i, n = groups.n, n_joined = 0
        cdef Line* joined
        if n == 1 or self.core.singly(txn.back.links):
            return 0
        for i in range(self.n):
            until = min(until, max(self.channels[i].free, self.core.now) + self.burst_ps)
        for i in range(n):
            joined = &groups.at[n_joined - 1]
            if not i or joined.a <= busy + self.access_ps or groups.at[i].a > joined.a + joined.d * flit_ps or groups.at[i].a >= until:
                groups.at[n_joined] = groups.at[i]
                n_joined += 1
            else:
                joined.d += groups.at[i].d
        groups.n = n_joined
        if self.memory is not None and txn.pieces and groups.at[n_joined - 1].a < last:
            add(groups, last, 0)
        return 0

    cdef int64_t burst(self, int64_t line, int64_t arrival, int direction, int64_t key) except -1:
        """Serve a burst; return its completion time."""
        cdef Channel* channel = &self.channels[line & (self.n - 1)]
        cdef int64_t end = channel.free
        if end < arrival:
            end = arrival
            channel.since, channel.key = arrival, key
        if channel.direction != direction:
            if channel.direction != NONE_:
                end = self.turn(end)
            channel.direction = direction
        channel.free = end = end + self.burst_ps
        self.served_ps += self.burst_ps
        if end >= LIMIT:
            raise _too_late(end)
        return end

    cdef int64_t turn(self, int64_t t) except -1:
        """Start the turnaround of a channel at `t`; return its end."""
        if self.turn_ps and self.core.live:
            self.turns.append(t)
        return t + self.turn_ps

    cdef int release(self, Ready ready) except -1:
        cdef Transaction txn = ready.txn
        cdef Route back = txn.back
        cdef Line* group = &ready.groups.at[ready.next]
        cdef int64_t size = min(txn.nbytes, back.flit_bytes)
        cdef bint last = ready.next == ready.groups.n - 1
        ready.next += 1
        if last and self.memory is not None and txn.pieces:
            txn.data = self.memory.peek(txn.pieces)
        if group.d:
            back.count_flits(group.d, size)
            fn = txn.fn if last or not group[1].d else None
            self.core.put(back.links, group.d, size, txn.key, fn, None if fn is None else txn, False)
        if not last:
            self.core.push(group[1].a, ARRIVAL, txn.key, RELEASE, ready, self)
        return 0

    # -- writes

    def on_write(self, Transaction txn):
        self.look()
        if self.memory is not None and txn.data is not None:
            self.memory.poke(txn.pieces, txn.data)
        self.core.push(txn.end, ARRIVAL, txn.key, ACKNOWLEDGE, txn, self)

    cdef int acknowledge(self, Transaction txn) except -1:
        cdef Route back = txn.back
        if txn.posted:
            txn.fn(txn)
            return 0
        back.nbytes += ACK
        back.count_flits(1, ACK)
        self.core.put(back.links, 1, ACK, txn.key, txn.fn, txn, False)
        return 0

    cdef int comes(self, int64_t t, int64_t order, what) except -1:
        """Register a flit of a write, or (with t < 0) a train of them, in flight over the last link."""
        cdef Place* place
        if self.count == self.room:
            more_room(<void**>&self.coming, &self.room, sizeof(Place))
        place = &self.coming[self.count]
        place.t, place.priority, place.order = t, self.link.priority, order
        self.what.append(what)
        self.count += 1
        return 0

    cdef int look(self) except -1:
        """Serve all arrivals until now, in order."""
        cdef Place* place
        cdef Place latest_
        cdef Train train
        cdef Line* lines
        cdef Line line
        cdef int m
        cdef int64_t first
        cdef bint now_too
        if not self.count:
            return 0
        self.core.reached(self.core.now, -1, -1)
        latest_ = self.core.latest
        while self.come < self.count:
            place = &self.coming[self.come]
            if place.t >= 0:
                if before(&latest_, place):
                    break
                line.a, line.d = place.t, 0
                self.flits(<Transaction>self.what[self.come], &line, 1, 0, 1)
            else:
                train = front_of(<Train>self.what[self.come])
                first = train.delivered
                lines = view(train, train.k + train.stops, &m)
                place.t = latest_.t
                now_too = not before(&latest_, place)
                place.t = -1
                train.delivered = come_before(lines, m, train.n, latest_.t + 1 if now_too else latest_.t)
                if first < train.delivered:
                    self.flits(<Transaction>train.arg, lines, m, first, train.delivered)
                if train.delivered < train.n:
                    break
            self.what[self.come] = None
            self.come += 1
        if 2 * self.come >= self.count:
            self.count -= self.come
            memmove(self.coming, self.coming + self.come, self.count * sizeof(Place))
            del self.what[:self.come]
            self.come = 0
        return 0

    cdef int flits(self, Transaction txn, Line* lines, int m, int64_t first, int64_t until) except -1:
        """Serve the bursts completed by flits `first` to `until` (exclusive) of those that arrive by `lines`."""
        cdef int64_t begin = txn.offset >> self.line_bits, bursts, i, j, line, arrival, end
        cdef int64_t q = txn.back.flits(txn.nbytes)
        if txn.lines is not None:
            bursts = len(txn.lines)
        else:
            bursts = ((txn.offset + txn.nbytes - 1) >> self.line_bits) + 1 - begin
        for i in range(first, until):
            arrival = latest(lines, m, i)
            for j in range(txn.arrived * bursts // q, (txn.arrived + 1) * bursts // q):
                line = txn.lines[j] if txn.lines is not None else begin + j
                end = self.burst(line, arrival, WRITE_, txn.key)
                if end >= txn.end:
                    txn.end = end
                    log(txn, arrival, &self.channels[line & (self.n - 1)], end)
            txn.arrived += 1
        return 0
