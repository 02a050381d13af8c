"""What compiled modules see of the core."""

from libc.stdint cimport int64_t, uint64_t

from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._transaction cimport Route
from kernbench.sim_engine._transaction cimport Transaction
from kernbench.sim_engine._waits cimport Waits


cdef struct Line:  # flit i of a train arrives no earlier than a + i * d; its last wait is `wait`
    int64_t a
    int64_t d
    int64_t wait


cdef struct Lines:  # a growable array
    Line* at
    int n
    int room


cdef struct Place:  # of an entry in the calendar
    int64_t t
    int64_t priority
    int64_t order


cdef struct Entry:
    Place place
    short kind
    short lane
    int y
    int64_t x  # a train, or an object by its number in `Core.objects`, as `y`
    int64_t wait  # the last one of a flit
    void* link  # whose next entry takes its place


cdef struct Arrival:  # an entry of a train behind a link
    int64_t t
    int64_t order
    int64_t wait
    void* train
    int kind
    int y
    int next  # of the same link, or of those that are free


cdef struct Heap:
    Entry* at
    int n
    int room


cdef struct Later:  # an entry in the list of its slot; or free
    Entry entry
    int next


cdef enum:
    SLOTS = 1024  # a power of 2
    WORDS = 16  # with a bit for each slot


cdef struct Calendar:
    Heap soon
    Heap far  # SLOTS or more ahead when they were added
    Later* later  # the `n_later` entries in lists; `free` is the first place that is free
    int first[SLOTS]  # of the slots whose bit in `filled` is set
    uint64_t filled[WORDS]
    int64_t slot  # the last one that has entered `soon`
    int64_t next  # of `later` and `far`
    int n_later
    int room
    int free


cdef struct Lane:  # entries that are processed apart; `now` and `latest` are set while another lane's are processed
    Calendar calendar
    int64_t now
    Place latest


cdef struct Taken:  # a link reserved by a train, and the state before
    int64_t free  # when the link would be free without the train
    int64_t key  # of the message that the link served before
    int64_t wait
    int end  # where its lines end in `Train.out`


cdef struct Gap:  # `n` idle times of `ps` ahead of the clock, `step` apart
    int64_t begin
    int64_t ps
    int64_t step
    int64_t n


cdef class Arbiter
cdef class Core
cdef class Flit
cdef class HbmSlice
cdef class Link
cdef class Train


cdef class Claim:
    cdef Train train
    cdef int k
    cdef int64_t number, last
    cdef Claim before


cdef class Link:
    # What every train reads and writes comes first: two or three lines of the cache.
    cdef public int64_t free
    cdef readonly int64_t lat, flit_bytes
    cdef int64_t flit_ps, last, busy_ps, served_key, served_wait
    cdef Train claim_train
    cdef Claim claims
    cdef int64_t claim_number
    cdef int claim_k, backoff
    cdef int lane, beyond  # of its ends
    # Entries of trains on the way over it, in order: the first one is in a calendar, the `coming - 1` others in a list.
    cdef int coming, first, end
    cdef int64_t end_t, end_order  # of the last one
    cdef public bint merges
    cdef int64_t small_size, small_ps
    cdef readonly int64_t number, priority, base
    cdef public HbmSlice memory
    cdef public dict legs
    cdef readonly object hook
    cdef public int64_t pending
    cdef Arbiter arbiter
    # In a live run, for `busy_by`: from now to `free` it is busy except in these gaps.
    cdef Gap* gaps
    cdef int n_gaps, gaps_room
    cdef int64_t behind
    cdef readonly object times
    cdef readonly str src, dst
    cdef readonly double bw_gbs
    cdef readonly int64_t edge_ps, header_bytes
    cdef int64_t ps(self, int64_t size) except -1
    cdef int idle(self, int64_t now, int64_t begin, int64_t ps, int64_t step, int64_t n) except -1
    cdef int idle_between(self, int64_t now, Line* lines, int m, int64_t n, int64_t d) except -1
    cdef void forget_idle(self, int64_t t) noexcept
    cdef int64_t busy_by(self, int64_t now) noexcept


cdef class Train:
    cdef tuple links
    cdef int k, place, entries  # while it has entries, `Core.objects` has it at this place
    cdef bint each, apart
    cdef int64_t size, key, n, left, number, delivered, wait
    cdef object fn, arg
    cdef Lines lines, out
    cdef Taken* taken
    cdef int stops, room
    cdef Train child, rest, before


cdef class Flit:
    cdef tuple links
    cdef int k
    cdef int64_t size, key, wait
    cdef object fn, arg
    cdef bint each


cdef class Core:
    cdef readonly int64_t now, events, reservations
    cdef public list hops
    cdef public object running
    cdef public Waits waits
    cdef public bint live, credits
    cdef Lane* lanes
    cdef int64_t* firsts  # time of each lane's first entry, but for the lane that is being processed
    cdef Calendar* calendar
    cdef int lane, n_lanes
    cdef int64_t lookahead, base
    cdef Place limit
    cdef int coupled
    cdef bint united
    cdef list objects
    cdef int* spare
    cdef int n_spare, room_spare
    cdef Arrival* arrivals  # in lists, by link
    cdef int n_arrivals, room_arrivals, free_arrival
    cdef int64_t number, scheduled, phase
    cdef Place latest
    cdef Lines scratch
    # Methods called by other modules come first, so that a change of the rest does not recompile those.
    cpdef call_at(self, int64_t t, fn, arg=*)
    cpdef call_last(self, int64_t t, fn, arg=*)
    cpdef call_ordered(self, int64_t t, int64_t key, fn, arg)
    cpdef wake_at(self, int64_t t, Callee callee, int what, arg)
    cpdef wake_ordered(self, int64_t t, int64_t key, Callee callee, int what, arg)
    cpdef event_at(self, int64_t t, int64_t priority, event)
    cpdef put(self, tuple links, int64_t count, int64_t size, int64_t key, fn, arg, bint each=*)
    cpdef call_after_turns(self, int64_t t, int64_t order, fn, arg)
    cdef int arrive_at(self, int64_t t, int64_t priority, int64_t base, Flit flit) except -1
    cdef int emerge(self, Flit flit, int64_t priority, int64_t order) except -1
    cdef int64_t served(self, Link link, Flit flit, int64_t arrival, int64_t start, int64_t least_ps) except -1
    cdef int keep(self, object x) except -1
    cdef object give(self, int i)
    cdef int push(self, int64_t t, int64_t priority, int64_t order, int kind, x, y) except -1
    cdef int enter(self, int lane) noexcept
    cdef int unite(self) except -1
    cdef int separate(self) except -1
    cdef bint turn(self) except -1
    cdef int outside(self) except -1
    cdef int push_train(self, Link link, int64_t t, int64_t number, int kind, Train train, int k=*, int64_t wait=*) except -1
    cdef int follow(self, Link link, Entry* entry) except -1
    cdef int next_of(self, Link link) except -1
    cdef bint ready(self) except -1
    cdef int call(self, fn, arg) except -1
    cdef Train start(self, tuple links, int64_t count, int64_t size, int64_t key, fn, arg, bint each, int64_t a, int64_t d)
    cdef int64_t waited(self, Link link, int64_t key, int64_t wait, int64_t arrival, int64_t start) except? -1
    cdef int note(self, int64_t key, int64_t wait) except -1
    cdef int turned(self, Link link, int64_t key, int64_t asked, int64_t t) except -1
    cdef bint singly(self, tuple links) except -1
    cdef int reach(self, Flit flit, int64_t priority, int64_t order) except -1
    cdef int reached(self, int64_t t, int64_t priority, int64_t order) except -1
    cdef int make_way(self, Link link, int64_t t, int64_t priority, int64_t order) except -1
    cdef int requeue(self, Train train, int64_t j, int64_t number) except -1
    cdef int advance(self, Train train) except -1
    cdef int leave(self, Train train, Link link, Link previous) except -1
    cdef int take(self, Train train, int k) except -1
    cdef int hop(self, Train train, int kind, int k, int64_t wait, int64_t priority, int64_t order) except -1
    cdef int end(self, Train train, bint as_train) except -1
    cdef int64_t cut(self, Train train, int64_t keep) except -1


cdef class Waiting:
    cdef object fn, arg
    cdef Route route
    cdef int64_t count, size, key, asked
    cdef int kind
    cdef bint each


cdef class Arbiter:
    cdef readonly Core core
    cdef readonly Link link
    cdef readonly int64_t nbytes
    cdef int64_t chunk, turn_ps, granted_count, granted_start
    cdef int last
    cdef list bulk, queue
    cdef Waiting granted
    cdef Train train
    cpdef send(self, int kind, Route route, int64_t nbytes, int64_t key, fn, arg, bint each=*)
    cpdef start(self, int kind, Route route, int64_t count, int64_t size, int64_t key, fn, arg, bint each)
    cdef list waiting(self, int kind)
    cdef int schedule(self) except -1
    cdef int grant(self, Waiting message) except -1
    cdef int first_turn(self, Waiting message, int64_t t) except -1
    cdef bint alternate(self, Waiting first, list others) except -1
    cdef int cut(self) except -1


cdef struct Channel:
    int64_t free
    int64_t since  # since when it has been busy without a gap
    int64_t key  # of the transaction that began the busy period
    int direction


cdef class Ready:
    cdef Transaction txn
    cdef Lines groups
    cdef int next


cdef class HbmSlice:
    cdef readonly Core core
    cdef readonly Link link
    cdef readonly object memory
    cdef readonly int n, line_bits
    cdef readonly int64_t burst_ps, turn_ps, access_ps, served_ps
    cdef int64_t line_mask, round_bytes
    cdef bint by_rounds
    cdef Channel* channels
    cdef list turns  # starts of turnarounds, for `busy_by`
    cdef Place* coming
    cdef list what
    cdef int come, count, room  # the first `come` of `coming` have been served
    cdef int64_t idle_ps(self) except -1
    cdef int singly(self, Transaction txn, Lines* groups) except -1
    cdef bint rounds(self, Transaction txn, Lines* groups) except -1
    cdef int join(self, Transaction txn, Lines* groups, int64_t busy) except -1
    cdef int64_t burst(self, int64_t line, int64_t arrival, int direction, int64_t key) except -1
    cdef int64_t turn(self, int64_t t) except -1
    cdef int release(self, Ready ready) except -1
    cdef int acknowledge(self, Transaction txn) except -1
    cdef int comes(self, int64_t t, int64_t order, what) except -1
    cdef int look(self) except -1
    cdef int flits(self, Transaction txn, Line* lines, int m, int64_t first, int64_t until) except -1
