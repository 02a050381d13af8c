# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, nonecheck=False
"""The compiled form of `_python_routers`: the same cycles, in C arrays.

An input VC has the number `input * n + vc`, as has a VC of a sender: its credits, whether a packet has it, and its
grant pointer. Only routers and sources that hold flits are visited, and cycles without any are skipped.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t
from libc.string cimport memset

from kernbench.sim_engine._core cimport Core, Flit, Link
from kernbench.sim_engine._transaction cimport Callee

cdef int CLASSES_ = 2
cdef enum:
    IDLE, WAITS, ACTIVE


cdef int grow(void** at, int* room, int n, size_t size) except -1:
    """Grow an array to at least `n` elements, the new ones zero."""
    cdef int wanted = room[0] if room[0] else 8
    if n <= room[0]:
        return 0
    while wanted < n:
        wanted *= 2
    cdef void* grown = PyMem_Realloc(at[0], wanted * size)
    if grown == NULL:
        raise MemoryError()
    memset(<char*>grown + room[0] * size, 0, (wanted - room[0]) * size)
    at[0], room[0] = grown, wanted
    return 0


cdef void* array(size_t n, size_t size) except NULL:
    cdef void* made = PyMem_Malloc(n * size if n else size)
    if made == NULL:
        raise MemoryError()
    memset(made, 0, n * size)
    return made


cdef class Leg(Callee):
    """The path of one route through the network, as in `_python_routers`."""

    def __init__(self, Routers routers, int source, int message_class, hops, int k, int64_t priority, int64_t base, int64_t extra_ps):
        cdef int i, router
        self.routers, self.source, self.message_class = routers, source, message_class
        self.k, self.priority, self.base, self.extra_ps = k, priority, base, extra_ps
        self.ordered, self.packet_flits, self.early = True, 1, {}
        self.n = len(hops)
        self.outs = <int*>array(self.n, sizeof(int))
        self.low = <int*>array(self.n, sizeof(int))
        self.high = <int*>array(self.n, sizeof(int))
        router = routers.inputs[routers.senders[routers.sources[source].sender].into].router
        for i, (output, low, high) in enumerate(hops):
            self.outs[i], self.low[i], self.high[i] = routers.routers[router].output + output, low, high
            if i < self.n - 1:
                router = routers.inputs[routers.senders[self.outs[i]].into].router

    def __dealloc__(self):
        PyMem_Free(self.outs)
        PyMem_Free(self.low)
        PyMem_Free(self.high)

    cpdef landed(self, flit):
        cdef Routers routers = self.routers
        cdef Source* source = &routers.sources[self.source]
        cdef int i = routers.spare, position = self.entered % self.packet_flits, c = self.message_class
        cdef Held* held
        if i >= 0:
            routers.spare = routers.held[i].next
            routers.held_legs[i], routers.flits[i] = self, flit
        else:
            i = routers.n_held
            routers.n_held += 1
            grow(<void**>&routers.held, &routers.room_held, routers.n_held, sizeof(Held))
            routers.held_legs.append(self)
            routers.flits.append(flit)
        held = &routers.held[i]
        held.hop, held.next = 0, -1
        held.first, held.last = position == 0, position == self.packet_flits - 1
        held.number, held.since_ps = self.entered, routers.core.now
        self.entered += 1
        if source.first[c] < 0:
            source.first[c] = i
        else:
            routers.held[source.last[c]].next = i
        source.last[c] = i
        (<Link>routers.links[source.sender]).pending += 1
        routers.wake(self.source)

    cdef int leave(self, int i, int64_t t_ps) except -1:
        cdef Routers routers = self.routers
        cdef Held* held = &routers.held[i]
        cdef int64_t number = held.number
        cdef Flit flit = <Flit>routers.flits[i]
        routers.flits[i] = routers.held_legs[i] = None
        held.next, routers.spare = routers.spare, i
        t_ps += self.extra_ps
        flit.k = self.k
        if not self.ordered:
            return routers.core.arrive_at(t_ps, self.priority, self.base, flit)
        if number != self.left:
            self.early[number] = t_ps, flit
            return 0
        while True:
            self.last_ps = max(self.last_ps, t_ps)
            self.left += 1
            routers.core.arrive_at(self.last_ps, self.priority, self.base, flit)
            if not self.early or self.left not in self.early:
                return 0
            t_ps, flit = self.early.pop(self.left)


cdef class Routers:
    """The routers of one network, as in `_python_routers`."""

    def __init__(self, Core core, int number, int64_t cycle_ps, int vcs, int depth, stages):
        self.core, self.number, self.cycle_ps, self.vcs, self.depth = core, number, cycle_ps, vcs, depth
        self.n = CLASSES_ * vcs
        self.routing, self.vc_allocation, self.switch_allocation, self.traversal = stages
        self.links, self.flits, self.held_legs, self.scheduled = [], [], [], set()
        self.spare = -1
        self.span = 16
        self.wheel = <Bucket*>array(self.span, sizeof(Bucket))

    def __dealloc__(self):
        cdef int i
        for i in range(self.n_routers):
            PyMem_Free(self.routers[i].busy)
        for i in range(self.span if self.wheel != NULL else 0):
            PyMem_Free(self.wheel[i].at)
        PyMem_Free(self.wheel)
        PyMem_Free(self.held)
        PyMem_Free(self.channels)
        PyMem_Free(self.fifo)
        PyMem_Free(self.inputs)
        PyMem_Free(self.senders)
        PyMem_Free(self.credits)
        PyMem_Free(self.taken)
        PyMem_Free(self.vc_grants)
        PyMem_Free(self.sources)
        PyMem_Free(self.routers)
        PyMem_Free(self.busy)
        PyMem_Free(self.sending)
        PyMem_Free(self.best)
        PyMem_Free(self.waiting)
        PyMem_Free(self.asked)
        PyMem_Free(self.winner)

    cdef int _sender(self, int router, int wire, link) except -1:
        cdef int i = self.n_senders, v, room
        self.n_senders += 1
        if self.n_senders > self.room_senders:
            room = self.room_senders
            grow(<void**>&self.senders, &room, self.n_senders, sizeof(Sender))
            room = self.room_senders
            grow(<void**>&self.credits, &room, self.n_senders, self.n * sizeof(int))
            room = self.room_senders
            grow(<void**>&self.taken, &room, self.n_senders, self.n)
            grow(<void**>&self.vc_grants, &self.room_senders, self.n_senders, self.n * sizeof(int))
        self.senders[i].router, self.senders[i].into, self.senders[i].wire = router, -1, wire
        for v in range(self.n):
            self.credits[i * self.n + v] = self.depth
        self.links.append(link)
        return i

    def add_router(self, int inputs, outputs):
        cdef int r = self.n_routers, i, room, ports
        cdef Router* router
        self.n_routers += 1
        grow(<void**>&self.routers, &self.room_routers, self.n_routers, sizeof(Router))
        router = &self.routers[r]
        router.input, router.inputs = self.n_inputs, inputs
        self.n_inputs += inputs
        if self.n_inputs > self.room_inputs:
            room = self.room_inputs
            grow(<void**>&self.inputs, &room, self.n_inputs, sizeof(Input))
            room = self.room_inputs
            grow(<void**>&self.channels, &room, self.n_inputs, self.n * sizeof(Vc))
            grow(<void**>&self.fifo, &self.room_inputs, self.n_inputs, self.n * self.depth * sizeof(int))
        for i in range(router.input, router.input + inputs):
            self.inputs[i].router = r
        router.output = self.n_senders
        for wire, link in outputs:
            self._sender(r, wire, link)
        router.outputs = self.n_senders - router.output
        router.busy = <int*>array(inputs * self.n, sizeof(int))
        ports = max(inputs, router.outputs)
        if ports > self.room_ports:
            self.room_ports = ports
            PyMem_Free(self.best)
            PyMem_Free(self.waiting)
            PyMem_Free(self.asked)
            PyMem_Free(self.winner)
            self.best = <int*>array(ports * self.n, sizeof(int))
            self.waiting = <int*>array(ports * self.n, sizeof(int))
            self.asked = <int*>array(ports * ports, sizeof(int))
            self.winner = <int*>array(2 * ports, sizeof(int))
            memset(self.best, 255, ports * self.n * sizeof(int))
            memset(self.asked, 255, ports * ports * sizeof(int))
            memset(self.winner, 255, 2 * ports * sizeof(int))
        return r

    def join(self, int src, int output, int dst, int into):
        self.senders[self.routers[src].output + output].into = self.routers[dst].input + into
        self.inputs[self.routers[dst].input + into].upstream = self.routers[src].output + output

    def add_source(self, int router, int into, int wire, link):
        cdef int i = self.n_sources, c
        cdef Source* source
        self.n_sources += 1
        grow(<void**>&self.sources, &self.room_sources, self.n_sources, sizeof(Source))
        source = &self.sources[i]
        source.sender, source.last_class = self._sender(-1, wire, link), CLASSES_ - 1
        for c in range(CLASSES_):
            source.first[c] = source.last[c] = -1
            source.vcs[c] = self.vcs * c
        self.senders[source.sender].into = self.routers[router].input + into
        self.inputs[self.routers[router].input + into].upstream = source.sender
        return i

    # ------------------------------------------------------------------------------------------------------ calendar

    cdef int wake(self, int source) except -1:
        if not self.sources[source].listed:
            self.sources[source].listed = True
            grow(<void**>&self.sending, &self.room_sending, self.n_sending + 1, sizeof(int))
            self.sending[self.n_sending] = source
            self.n_sending += 1
        return self.schedule((self.core.now + self.cycle_ps - 1) // self.cycle_ps)

    cdef int schedule(self, int64_t t) except -1:
        if t not in self.scheduled:
            self.scheduled.add(t)
            self.core.call_after_turns(t * self.cycle_ps, self.number, self.cycle, t)
        return 0

    cdef int post(self, int64_t t, int to, int vc, int held) except -1:
        """Schedule the arrival of a flit or a credit in cycle `t`."""
        cdef int span = self.span, i
        cdef Bucket* wheel
        cdef Bucket* bucket
        if t - self.now >= span:
            while t - self.now >= self.span:
                self.span *= 2
            wheel = <Bucket*>array(self.span, sizeof(Bucket))
            for i in range(span):
                # All events of a bucket are due in one cycle: the only one of the next `span` that maps to it.
                wheel[(self.now + ((i - self.now) & (span - 1))) & (self.span - 1)] = self.wheel[i]
            PyMem_Free(self.wheel)
            self.wheel = wheel
        bucket = &self.wheel[t & (self.span - 1)]
        if bucket.n == bucket.room:
            grow(<void**>&bucket.at, &bucket.room, bucket.n + 1, sizeof(Event))
        bucket.at[bucket.n].to, bucket.at[bucket.n].vc, bucket.at[bucket.n].held = to, vc, held
        bucket.n += 1
        self.events += 1
        return 0

    def cycle(self, int64_t t):
        cdef int i, j
        cdef Bucket* bucket = &self.wheel[t & (self.span - 1)]
        cdef Event* event
        cdef Router* router
        self.scheduled.remove(t)
        self.now = t
        for i in range(bucket.n):
            event = &bucket.at[i]
            if event.held >= 0:
                self.take(event.to, event.vc, event.held, t)
            else:
                self.credits[event.to * self.n + event.vc] += 1
        self.events -= bucket.n
        bucket.n = 0
        j = 0
        for i in range(self.n_busy):
            router = &self.routers[self.busy[i]]
            self.allocate_vcs(router, t)
            self.allocate_switch(router, t)
            if router.n_busy:
                self.busy[j] = self.busy[i]
                j += 1
            else:
                router.listed = False
        self.n_busy = j
        j = 0
        for i in range(self.n_sending):
            if self.send_from(&self.sources[self.sending[i]], t):
                self.sending[j] = self.sending[i]
                j += 1
            else:
                self.sources[self.sending[i]].listed = False
        self.n_sending = j
        if self.n_busy or self.n_sending:
            self.schedule(t + 1)
        elif self.events:
            for i in range(1, self.span):
                if self.wheel[(t + i) & (self.span - 1)].n:
                    self.schedule(t + i)
                    break

    # ------------------------------------------------------------------------------------------------------- routers

    cdef int begin(self, int channel, int64_t ready) except -1:
        """Route the packet at the head of a VC; it then waits for a VC of the next buffer."""
        cdef Vc* vc = &self.channels[channel]
        cdef int held = self.fifo[channel * self.depth + vc.head]
        vc.state, vc.ready = WAITS, ready
        vc.out = (<Leg>self.held_legs[held]).outs[self.held[held].hop]
        return 0

    cdef int take(self, int into, int v, int held, int64_t t) except -1:
        cdef int channel = into * self.n + v, r = self.inputs[into].router
        cdef Vc* vc = &self.channels[channel]
        cdef Router* router = &self.routers[r]
        self.fifo[channel * self.depth + (vc.head + vc.n) % self.depth] = held
        vc.n += 1
        self.held[held].since_ps = t * self.cycle_ps
        if vc.state == IDLE:
            self.begin(channel, t + self.routing)
        if not vc.listed:
            vc.listed = True
            router.busy[router.n_busy] = channel
            router.n_busy += 1
            if not router.listed:
                router.listed = True
                grow(<void**>&self.busy, &self.room_busy, self.n_busy + 1, sizeof(int))
                self.busy[self.n_busy] = r
                self.n_busy += 1
        return 0

    cdef int allocate_vcs(self, Router* router, int64_t t) except -1:
        cdef int n = self.n, n_in = router.inputs * n, n_out = router.outputs * n
        cdef int first_in = router.input * n, first_out = router.output * n
        cdef int i, j, m = 0, iv, ov, pointer, turn, found, held
        cdef Vc* vc
        cdef Leg leg
        for i in range(router.n_busy):
            vc = &self.channels[router.busy[i]]
            if vc.state == WAITS and vc.ready <= t:
                self.waiting[m] = router.busy[i]
                m += 1
        if not m:
            return 0
        for i in range(m):
            iv = self.waiting[i]
            vc = &self.channels[iv]
            held = self.fifo[iv * self.depth + vc.head]
            leg = <Leg>self.held_legs[held]
            j = self.held[held].hop
            for ov in range(vc.out * n + leg.low[j], vc.out * n + leg.high[j]):
                if self.taken[ov]:
                    continue
                found = self.best[ov - first_out]
                if found >= 0:
                    pointer = self.vc_grants[ov]
                    if (iv - first_in - pointer + n_in) % n_in > (found - first_in - pointer + n_in) % n_in:
                        continue
                self.best[ov - first_out] = iv
        for i in range(m):
            iv = self.waiting[i]
            vc = &self.channels[iv]
            found, turn = -1, n_out
            for j in range((vc.out - router.output) * n, (vc.out - router.output + 1) * n):
                if self.best[j] == iv and (j - vc.accept + n_out) % n_out < turn:
                    found, turn = j, (j - vc.accept + n_out) % n_out
            if found >= 0:
                vc.state, vc.ready, vc.out_vc = ACTIVE, t + self.vc_allocation, found % n
                vc.accept = (found + 1) % n_out
                self.taken[first_out + found] = True
                self.vc_grants[first_out + found] = (iv - first_in + 1) % n_in
        for i in range(m):
            vc = &self.channels[self.waiting[i]]
            memset(&self.best[(vc.out - router.output) * n], 255, n * sizeof(int))
        return 0

    cdef int allocate_switch(self, Router* router, int64_t t) except -1:
        cdef int n = self.n, n_in = router.inputs, n_out = router.outputs, i, m = 0, q, o, v, found, pointer, channel
        cdef int* offered = self.winner  # by output: the input that it is granted to
        cdef int* chosen = self.winner + self.room_ports  # by input: the output that it accepts
        cdef Vc* vc
        cdef Sender* sender
        for i in range(router.n_busy):
            channel = router.busy[i]
            vc = &self.channels[channel]
            if vc.state != ACTIVE or vc.ready > t:
                continue
            sender = &self.senders[vc.out]
            if sender.free > t or not self.credits[vc.out * n + vc.out_vc]:
                continue
            q, v, o = channel // n - router.input, channel % n, vc.out - router.output
            found = self.asked[q * n_out + o]
            if found < 0:
                self.waiting[m] = q * n_out + o
                m += 1
            else:
                pointer = self.inputs[router.input + q].next_vc
                if (v - pointer + n) % n > (found - pointer + n) % n:
                    continue
            self.asked[q * n_out + o] = v
        for i in range(m):
            q, o = self.waiting[i] // n_out, self.waiting[i] % n_out
            pointer, found = self.senders[router.output + o].grant, offered[o]
            if found < 0 or (q - pointer + n_in) % n_in < (found - pointer + n_in) % n_in:
                offered[o] = q
        for i in range(m):
            o = self.waiting[i] % n_out
            q = offered[o]
            pointer, found = self.inputs[router.input + q].accept, chosen[q]
            if found < 0 or (o - pointer + n_out) % n_out < (found - pointer + n_out) % n_out:
                chosen[q] = o
        for i in range(m):
            q, o = self.waiting[i] // n_out, self.waiting[i] % n_out
            v, self.asked[self.waiting[i]] = self.asked[self.waiting[i]], -1
            if chosen[q] == o:
                chosen[q] = -1
                self.senders[router.output + o].grant = (q + 1) % n_in
                self.inputs[router.input + q].accept = (o + 1) % n_out
                self.inputs[router.input + q].next_vc = (v + 1) % n
                self.send((router.input + q) * n + v, t)
            offered[o] = -1
        # VCs without flits leave the list.
        if m:
            m = 0
            for i in range(router.n_busy):
                channel = router.busy[i]
                if self.channels[channel].n:
                    router.busy[m] = channel
                    m += 1
                else:
                    self.channels[channel].listed = False
            router.n_busy = m
        return 0

    cdef int send(self, int channel, int64_t t) except -1:
        cdef int n = self.n, i, upstream = self.inputs[channel // n].upstream
        cdef Vc* vc = &self.channels[channel]
        cdef Sender* sender = &self.senders[vc.out]
        cdef Held* held
        cdef int64_t arrival
        cdef bint last
        i = self.fifo[channel * self.depth + vc.head]
        held = &self.held[i]
        last = held.last
        vc.head = (vc.head + 1) % self.depth
        vc.n -= 1
        self.post(t + 1 + self.senders[upstream].wire, upstream, channel % n, -1)
        self.credits[vc.out * n + vc.out_vc] -= 1
        arrival = t + self.switch_allocation + self.traversal + sender.wire
        arrival += self.serve(vc.out, i, t, self.routing + self.vc_allocation)
        held.hop += 1
        if sender.into >= 0:
            self.post(arrival, sender.into, vc.out_vc, i)
        else:
            self.post(arrival + 1 + sender.wire, vc.out, vc.out_vc, -1)
            (<Leg>self.held_legs[i]).leave(i, arrival * self.cycle_ps)
        if last:
            self.taken[vc.out * n + vc.out_vc] = False
            vc.state = IDLE
            if vc.n:
                self.begin(channel, t + 1 + self.routing)
        return 0

    cdef int serve(self, int sender, int i, int64_t t, int least) except -1:
        cdef Flit flit = <Flit>self.flits[i]
        cdef Link link = <Link>self.links[sender]
        cdef int64_t ps = self.core.served(link, flit, self.held[i].since_ps, t * self.cycle_ps, least * self.cycle_ps)
        cdef int64_t cycles = max(1, (ps + self.cycle_ps - 1) // self.cycle_ps)
        self.senders[sender].free = t + cycles
        return cycles - 1

    cdef int send_from(self, Source* source, int64_t t) except -1:
        """Send one flit of a source if it has a credit; return whether more are queued."""
        cdef int n = self.n, each = self.vcs, i, j, c, vc, low, turn, held, at = source.sender
        cdef Link link
        cdef int64_t arrival
        if self.senders[at].free > t:
            return True
        for i in range(1, CLASSES_ + 1):
            c = (source.last_class + i) % CLASSES_
            held = source.first[c]
            if held < 0:
                continue
            vc = source.vcs[c]
            if self.held[held].first:
                low, vc = each * c, -1
                for j in range(1, each + 1):
                    turn = low + (source.vcs[c] - low + j) % each
                    if self.credits[at * n + turn]:
                        vc = turn
                        break
            if vc < 0 or not self.credits[at * n + vc]:
                continue
            source.first[c] = self.held[held].next
            source.vcs[c], source.last_class = vc, c
            self.credits[at * n + vc] -= 1
            arrival = t + 1 + self.senders[at].wire + self.serve(at, held, t, 0)
            self.post(arrival, self.senders[at].into, vc, held)
            link = <Link>self.links[at]
            link.pending -= 1
            if not link.pending and link.arbiter is not None:
                link.arbiter.schedule()
            break
        return source.first[0] >= 0 or source.first[1] >= 0
