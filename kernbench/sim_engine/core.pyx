# distutils: language = c++
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, nonecheck=False
"""The calendar, links and trains: the same algorithm as clock/link/trains/movers, compiled."""
from libc.stdint cimport int64_t
from libcpp.vector cimport vector
from cpython.ref cimport PyObject, Py_INCREF, Py_DECREF, Py_XDECREF
cimport cython
from collections import deque
import simpy
from simpy.core import EmptySchedule

cdef int64_t ARRIVAL = 2
cdef int64_t LAST = <int64_t>1 << 62
cdef int64_t HELD = <int64_t>1 << 62
cdef int WARY = 256
FLIT = 256




cdef inline bint less(Entry* x, Entry* y) noexcept nogil:
    if x.t != y.t: return x.t < y.t
    if x.p != y.p: return x.p < y.p
    return x.k < y.k

cdef inline bint jless(Joined* x, Joined* y) noexcept nogil:
    if x.a != y.a: return x.a < y.a
    if x.p != y.p: return x.p < y.p
    return x.k < y.k

cdef inline int64_t latest(Seg* s, int n, int64_t i) noexcept nogil:
    cdef int64_t m = s[0].a + i * s[0].d, v
    cdef int j
    for j in range(1, n):
        v = s[j].a + i * s[j].d
        if v > m: m = v
    return m

cdef inline int64_t come_before(Seg* s, int m, int64_t n, int64_t t) noexcept nogil:
    cdef int j
    cdef int64_t c
    for j in range(m):
        if s[j].d:
            c = t - s[j].a
            c = (c + s[j].d - 1) // s[j].d if c > 0 else 0
            if c < n: n = c
        elif s[j].a >= t:
            return 0
    return n

cdef class Ahead:
    pass

@cython.freelist(256)
cdef class Flit:
    pass

cdef Ahead mk_ahead(Train t, int k, int64_t number, int64_t tail):
    cdef Ahead a = Ahead.__new__(Ahead)
    a.train = t; a.k = k; a.number = number; a.tail = tail
    return a

cdef class Open:
    def __cinit__(self):
        self.feeders = []
    cdef void push(self, int64_t a, int64_t p, int64_t k, Train tr):
        cdef Joined e, q
        e.a = a; e.p = p; e.k = k; e.train = <PyObject*>tr
        Py_INCREF(tr)
        self.joined.push_back(e)
        cdef size_t i = self.joined.size() - 1, par
        while i:
            par = (i - 1) >> 1
            if jless(&e, &self.joined[par]):
                self.joined[i] = self.joined[par]; i = par
            else: break
        self.joined[i] = e
    cdef Train pop(self, int64_t* a, int64_t* p, int64_t* k):
        cdef Joined top = self.joined[0], last = self.joined.back()
        self.joined.pop_back()
        cdef size_t n = self.joined.size(), i = 0, c
        if n:
            while True:
                c = 2 * i + 1
                if c >= n: break
                if c + 1 < n and jless(&self.joined[c + 1], &self.joined[c]): c += 1
                if jless(&self.joined[c], &last):
                    self.joined[i] = self.joined[c]; i = c
                else: break
            self.joined[i] = last
        a[0] = top.a; p[0] = top.p; k[0] = top.k
        tr = <Train>top.train
        Py_DECREF(tr)
        return tr

cdef class Link:
    def __init__(self, edge, int64_t to, int64_t extra_ps, int64_t rank, hook, merges, times):
        self.src, self.dst, bw, latency_ps, _, _ = edge
        self.bw_gbs = bw
        self.lat = latency_ps + extra_ps
        self.hook = hook
        self.priority = ARRIVAL + 1 + rank
        self.free = 0; self.last = -1; self.wary = 0
        self.base = to << 40
        self.merges = merges or not self.lat
        self.times = times
        self.flit_ps = times[256]
    @property
    def name(self):
        return f"{self.src}->{self.dst}"
    @property
    def open(self):
        return self.open_
    cdef int64_t ps(self, int64_t size):
        if size == 256: return self.flit_ps
        if size == 0: return 0
        return self.times[size]
    cdef void put_under(self, int64_t now):
        u = self.under
        if u is None:
            u = self.under = deque()
        while u and (<Ahead>u[0]).tail < now:
            u.popleft()
        u.append(self.ahead_)
    cdef Open opened(self):
        if self.open_ is None:
            self.open_ = Open()
        return self.open_

cdef class Callee:
    """What the clock calls without a bound method."""
    cpdef landed(self, arg):
        raise NotImplementedError
    cpdef woken(self, int what, arg):
        raise NotImplementedError
    def __call__(self, arg):
        return self.landed(arg)

@cython.freelist(1024)
cdef class Train:

    cdef Train front(self):
        cdef Train t = self
        while t.child is not None:
            t = t.child
        return t
    cdef Seg* view(self, int k, int* m) noexcept:
        cdef int i = k - self.k, b
        if i == 0:
            m[0] = <int>self.lines.size()
            return self.lines.data()
        i -= 1
        b = self.ends[i - 1] if i else 0
        m[0] = self.ends[i] - b
        return self.out.data() + b
    cdef Train part_from(self, int k):
        cdef int first = k - self.k, i, m, b
        cdef Seg* s
        cdef Link link
        if not first:
            return self
        cdef Train part = mk_train(self.links, k, self.n, self.size, self.number, self.fn, self.arg, self.each)
        s = self.view(k, &m)
        for i in range(m): part.lines.push_back(s[i])
        b = self.ends[first - 1]
        for i in range(b, <int>self.out.size()): part.out.push_back(self.out[i])
        for i in range(first, <int>self.ends.size()): part.ends.push_back(self.ends[i] - b)
        for i in range(first, <int>self.found.size()): part.found.push_back(self.found[i])
        self.out.resize(b); self.ends.resize(first); self.found.resize(first)
        part.child = self.child; part.told = self.told; self.child = part
        for i in range(k, k + <int>part.ends.size()):
            link = <Link>self.links[i]
            if link.ahead_ is not None and link.ahead_.train is self:
                link.ahead_ = mk_ahead(part, link.ahead_.k, link.ahead_.number, link.ahead_.tail)
        return part
    cdef Train split(self, int64_t j, int64_t number, int64_t* back):
        cdef Train rest = mk_train(self.links, self.k, self.n - j, self.size, number, self.fn, self.arg, self.each)
        cdef Seg s
        cdef size_t i
        for i in range(self.lines.size()):
            s = self.lines[i]
            s.a += j * s.d
            rest.lines.push_back(s)
        back[0] = self.ccut(j)
        self.rest = rest
        if j:
            rest.before = self
        return rest
    cpdef int64_t cut(self, int64_t keep):
        return self.ccut(keep)
    cdef int64_t ccut(self, int64_t keep):
        cdef Train train = self, gone, nxt
        cdef int i, m, cm, b
        cdef Seg* come
        cdef Seg* out
        cdef Link link
        cdef Ahead a
        while train is not None and keep >= train.n:
            keep -= train.n
            train = train.rest
        if train is None:
            return 0
        gone = train.rest; train.rest = None
        while gone is not None:
            gone.n = 0; gone.before = None; nxt = gone.rest
            gone = nxt
        cdef int64_t back = (train.n - keep) * <int64_t>train.ends.size()
        train.n = keep
        train.fn = None
        come = train.lines.data(); cm = <int>train.lines.size()
        b = 0
        for i in range(<int>train.ends.size()):
            link = <Link>train.links[train.k + i]
            out = train.out.data() + b
            m = train.ends[i] - b
            link.free = latest(out, m, keep - 1) - link.lat if keep else train.found[i]
            a = link.ahead_
            if a is not None and a.train is train:
                if keep:
                    link.last = latest(come, cm, keep - 1)
                    link.ahead_ = mk_ahead(a.train, a.k, a.number, link.last)
                elif link.under:
                    link.ahead_ = <Ahead>link.under.pop()
                    link.last = link.ahead_.tail
                else:
                    link.ahead_ = None; link.last = -1
            come = out; cm = m
            b = train.ends[i]
        return back + (train.child.ccut(keep) if train.child is not None else 0)

cdef Train mk_train(tuple links, int k, int64_t n, int64_t size, int64_t number, fn, arg, bint each):
    cdef Train t = Train.__new__(Train)
    t.links = links; t.k = k; t.n = n; t.size = size; t.number = number
    t.fn = fn; t.arg = arg; t.each = each
    t.told = 0
    return t

cdef class FinishAt:
    pass

cdef class Landing:
    pass

cdef class Core:
    """Heap, clock and mover in one."""
    def __cinit__(self):
        self.now = 0; self.events = 0; self.number = 1; self.eid = 0
        self.lt = -1; self.lp = -1; self.lk = -1
        self.run_ahead = True
    def __dealloc__(self):
        self.clear()
    def clear(self):
        cdef size_t i
        for i in range(self.heap.size()):
            Py_XDECREF(self.heap[i].x); Py_XDECREF(self.heap[i].y)
        self.heap.clear()
    def __len__(self):
        return self.heap.size()
    def peek(self):
        return self.heap[0].t if self.heap.size() else float("inf")
    cdef int64_t nxt(self) noexcept:
        cdef int64_t v = self.number
        self.number = v + 1
        return v
    cdef void push(self, int64_t t, int64_t p, int64_t k, int kind, x, y):
        cdef Entry e
        e.t = t; e.p = p; e.k = k; e.kind = kind; e.x = <PyObject*>x; e.y = <PyObject*>y
        Py_INCREF(x); Py_INCREF(y)
        self.heap.push_back(e)
        cdef size_t i = self.heap.size() - 1, par
        cdef Entry* h = self.heap.data()
        while i:
            par = (i - 1) >> 1
            if less(&e, &h[par]):
                h[i] = h[par]; i = par
            else: break
        h[i] = e
    cdef void pop(self, Entry* top) noexcept:
        cdef Entry last = self.heap.back()
        top[0] = self.heap[0]
        self.heap.pop_back()
        cdef size_t n = self.heap.size(), i = 0, c
        cdef Entry* h = self.heap.data()
        if n:
            while True:
                c = 2 * i + 1
                if c >= n: break
                if c + 1 < n and less(&h[c + 1], &h[c]): c += 1
                if less(&h[c], &last):
                    h[i] = h[c]; i = c
                else: break
            h[i] = last
    # -- clock
    cpdef call_at(self, int64_t t, fn, arg=None):
        self.eid += 1
        self.push(t, 1, self.eid, 0, fn, arg)
    cpdef wake_at(self, int64_t t, Callee callee, int what, arg):
        self.eid += 1
        self.push(t, 1, self.eid, 8 + what, callee, arg)
    cpdef call_last(self, int64_t t, fn, arg=None):
        self.eid += 1
        self.push(t, LAST, self.eid, 0, fn, arg)
    def call_key(self, int64_t t, int64_t key, fn, arg):
        self.push(t, ARRIVAL, key, 0, fn, arg)
    def event_at(self, int64_t t, int64_t p, event):
        self.eid += 1
        self.push(t, p, self.eid, 1, event, None)
    def drain(self, int64_t limit, until=None):
        cdef int64_t done = 0
        cdef Entry e
        cdef object x, y
        try:
            while self.heap.size():
                if done == limit:
                    return until is None or until.callbacks is not None
                done += 1
                self.pop(&e)
                self.now = e.t
                x = <object>e.x; y = <object>e.y
                Py_DECREF(x); Py_DECREF(y)
                if e.kind >= 8:
                    (<Callee>x).woken(e.kind - 8, y)
                elif e.kind == 3:
                    self.hop(<Flit>x)
                elif e.kind == 2:
                    self.advance(<Train>x)
                elif e.kind == 5:
                    self.arrive_last(<Train>x)
                elif e.kind == 4:
                    self.land(<Landing>x)
                elif e.kind == 6:
                    self.finish(<FinishAt>x)
                elif e.kind == 0:
                    x(y)
                else:
                    callbacks, x.callbacks = x.callbacks, None
                    for callback in callbacks:
                        callback(x)
                    if not x._ok and not hasattr(x, "_defused"):
                        raise x._value
                    if x is until:
                        return False
            return False
        finally:
            self.events += done
    # -- movers
    cdef void reached(self, int64_t t, int64_t p, int64_t k) noexcept:
        if self.lt != t or self.lp < p or (self.lp == p and self.lk < k):
            self.lt = t; self.lp = p; self.lk = k
    def make_way_(self, Link link, int64_t t, int64_t p, int64_t k):
        self.make_way(link, t, p, k)
    cdef int make_way(self, Link link, int64_t t, int64_t p, int64_t k) except -1:
        self.reached(t, p, k)
        cdef int64_t pt = self.lt, pp = self.lp, pk = self.lk, come, ot, op, ok
        cdef Ahead ahead
        cdef Train train
        cdef Link before
        cdef bint has
        cdef int m
        cdef Seg* s
        if link.open_ is not None:
            self.serve(link, pt, pp, pk)
        while t <= link.last:
            ahead = link.ahead_
            train = ahead.train
            before = <Link>train.links[ahead.k - 1]
            op = before.priority; ok = before.base + ahead.number
            has = t < pt or (t == pt and (op < pp or (op == pp and ok < pk)))
            s = train.view(ahead.k, &m)
            come = come_before(s, m, train.n, t + 1 if has else t)
            if come == train.n:
                return 0
            if come and self.whole:
                self.flag(link)
                return 0
            link.wary = WARY
            self.again(train.part_from(ahead.k), come, ahead.number)
            if come:
                return 0
        return 0
    cdef int again(self, Train train, int64_t j, int64_t number) except -1:
        cdef int64_t back = 0
        cdef Train rest = train.split(j, number, &back)
        cdef Link before
        self.reservations -= back
        if rest.k == len(rest.links) - 1 and not self.whole:
            self.join(rest)
        else:
            before = <Link>rest.links[rest.k - 1]
            self.push(latest(rest.lines.data(), <int>rest.lines.size(), 0), before.priority, before.base + number, 2, rest, None)
        return 0
    cdef int join(self, Train train) except -1:
        cdef tuple links = train.links
        cdef int k = train.k
        cdef Link link = <Link>links[k], before = <Link>links[k - 1], last
        cdef int64_t p = before.priority, order = before.base + train.number
        train.before = None
        if k < len(links) - 1:
            last = <Link>links[len(links) - 1]
            if last.free >= HELD:
                last.held((self.now, p, order))
            self.make_way(last, self.now, p, order)
            train.child = mk_train(links, k + 1, train.n, train.size, 0, train.fn, train.arg, train.each)
            feeders = last.opened().feeders
            if link not in feeders:
                feeders.append(link)
        (<Link>links[len(links) - 1]).wary = WARY
        link.wary = WARY
        link.opened().push(latest(train.lines.data(), <int>train.lines.size(), 0), p, order, train)
        self.finish_at(latest(train.lines.data(), <int>train.lines.size(), train.n - 1), p, order, link)
        return 0
    cdef void finish_at(self, int64_t t, int64_t p, int64_t k, Link link):
        cdef FinishAt f = FinishAt.__new__(FinishAt)
        f.link = link; f.p = p; f.k = k
        self.push(t, p, k, 6, f, None)
    cdef int finish(self, FinishAt f) except -1:
        if f.link.open_ is not None:
            self.reached(self.now, f.p, f.k + 1)
            self.serve(f.link, self.lt, self.lp, self.lk)
        return 0
    cdef int serve(self, Link link, int64_t pt, int64_t pp, int64_t pk) except -1:
        cdef Open opened = link.opened()
        cdef Link feeder
        cdef int64_t a = 0, p = 0, k = 0, d, order, free, lat = link.lat, prio = link.priority
        cdef Train train, onward
        cdef Joined* j
        cdef Link ol
        for feeder in opened.feeders:
            if feeder.open_ is not None:
                self.serve(feeder, pt, pp, pk)
        free = link.free
        while opened.joined.size():
            j = &opened.joined[0]
            if not (j.a < pt or (j.a == pt and (j.p < pp or (j.p == pp and j.k < pk)))):
                break
            train = opened.pop(&a, &p, &k)
            if train.told >= train.n:
                continue
            d = link.ps(train.size)
            free = (free if free > a else a) + d
            self.reservations += 1
            train.told += 1
            order = link.base + self.nxt()
            if train.told < train.n and train.lines.size():
                opened.push(latest(train.lines.data(), <int>train.lines.size(), train.told), p, k, train)
            onward = train.child
            if onward is not None:
                ol = <Link>onward.links[len(onward.links) - 1]
                ol.opened().push(free + lat, prio, order, onward)
                if train.told == train.n:
                    self.finish_at(free + lat, prio, order, ol)
                continue
            if train.each:
                link.coming.append((order, free + lat, train.arg))
            if train.told == train.n and train.fn is not None:
                self.landing(link, order, train, free + lat)
        link.free = free
        if not opened.joined.size():
            for feeder in opened.feeders:
                if feeder.open_ is not None:
                    return 0
            link.open_ = None
        return 0
    cdef void landing(self, Link link, int64_t order, Train train, int64_t t):
        cdef Landing x = Landing.__new__(Landing)
        x.link = link; x.k = order; x.train = train
        self.push(t, link.priority, order, 4, x, None)
    cdef int advance(self, Train train) except -1:
        cdef int k
        cdef Link link, before
        cdef int64_t number, t, p, order
        cdef Train last
        cdef Flit f
        train = train.front()
        if not train.n:
            return 0
        k = train.k + <int>train.ends.size()
        link = <Link>train.links[k]; before = <Link>train.links[k - 1]; number = train.number
        t = self.now; p = before.priority; order = before.base + number
        if train.n > 1:
            if link.free >= HELD:
                link.held((t, p, order))
            self.make_way(link, t, p, order)
            last = link.ahead_.train if link.ahead_ is not None else None
            if link.open_ is not None or (train.before is not None and not train.ends.size() and last is not train.before):
                train = train.part_from(k)
                if k >= len(train.links) - 2 and (<Link>train.links[len(train.links) - 1]).merges:
                    self.join(train)
                    return 0
                self.again(train, 1, number)
        train.before = None
        if train.n > 1:
            if link.wary:
                link.wary -= 1
            self.take(train, k)
        else:
            f = Flit.__new__(Flit)
            f.train = train; f.k = k; f.number = number
            self.hop(f)
            link.ahead_ = mk_ahead(train, k, number, -1)
        return 0
    cdef int take(self, Train train, int k) except -1:
        cdef tuple links = train.links
        cdef int64_t n = train.n, size = train.size, now = self.now, since, more = n - 1, head, tail, step = 0, free, d, came, number, start
        cdef int first = k, last = <int>len(links) - 1, m, i, b
        cdef bint single, one, any_
        cdef Seg s, q
        cdef Seg* lines
        cdef Link link = <Link>links[k], before
        lines = train.view(k, &m)
        since = now if self.run_ahead else LAST
        head = latest(lines, m, 0); tail = latest(lines, m, more)
        single = m == 1
        if single: step = lines[0].d
        came = train.number; number = self.nxt()
        while True:
            free = link.free
            train.found.push_back(free)
            if k and link.merges:
                if link.last >= now:
                    link.put_under(now)
                link.ahead_ = mk_ahead(train, k, came, tail)
                link.last = tail
            came = number
            d = link.ps(size)
            if free <= head and single:
                head += d + link.lat
                if step < d: step = d
                tail = head + more * step
                s.a = head; s.d = step
                train.out.push_back(s)
                train.ends.push_back(<int>train.out.size())
            else:
                start = free if free > head else head
                lines = train.view(k, &m)
                b = <int>train.out.size()
                # behind(lines, n, start, d, lat); pushing may move the vector, so indices are used

                s.a = start + d + link.lat; s.d = d
                if m == 1:
                    q = lines[0]
                    if q.d <= d or q.a + more * (q.d - d) <= start:
                        train.out.push_back(s)
                    elif start == q.a:
                        q.a += d + link.lat
                        train.out.push_back(q)
                    else:
                        q.a += d + link.lat
                        train.out.push_back(s); train.out.push_back(q)
                else:
                    any_ = False

                    self.tmp.clear()
                    for i in range(m):
                        q = lines[i]
                        if q.d > d and q.a + more * (q.d - d) > start:
                            q.a += d + link.lat
                            if q.a == s.a: any_ = True
                            self.tmp.push_back(q)
                    if not any_: train.out.push_back(s)
                    for i in range(<int>self.tmp.size()): train.out.push_back(self.tmp[i])
                train.ends.push_back(<int>train.out.size())
                lines = train.out.data() + b; m = <int>train.out.size() - b
                head = latest(lines, m, 0); tail = latest(lines, m, more)
                single = m == 1
                if single: step = lines[0].d
            link.free = tail - link.lat
            if k == last:
                if train.each:
                    link.coming.append((link.base + number, None, train))
                if train.fn is not None:
                    self.push(tail, link.priority, link.base + number, 5, train, None)
                break
            k += 1
            before = link; link = <Link>links[k]
            if link.merges:
                if since < head and not link.wary and (size or link.lat):
                    if link.last < now:
                        continue
                    if link.ahead_ is not None and <Link>link.ahead_.train.links[link.ahead_.k - 1] is before:
                        continue
                self.push(head, before.priority, before.base + number, 2, train, None)
                k -= 1
                break
        train.number = number
        self.reservations += (k + 1 - first) * n
        return 0
    cdef int hop(self, Flit flit) except -1:
        cdef Train train = flit.train
        cdef int k = flit.k, first = flit.k, count
        cdef int64_t number = flit.number, size = train.size, t = self.now, over, order, start, head
        cdef tuple links = train.links
        cdef Link link = <Link>links[k - 1], ahead
        count = <int>len(links)
        over = link.priority; order = link.base + number
        while True:
            link = <Link>links[k]
            if link.free >= HELD:
                link.held((t, over, order))
            if t <= link.last or link.open_ is not None:
                self.make_way(link, t, over, order)
            link.ahead_ = None
            link.last = -1
            if link.wary and link.open_ is None:
                link.wary -= 1
            start = link.free
            if start < t: start = t
            start += link.ps(size)
            link.free = start
            head = start + link.lat
            if head == t:
                self.reached(t, over, order)
            t = head
            over = link.priority
            number = self.nxt()
            order = link.base + number
            k += 1
            if k == count:
                if train.each:
                    link.coming.append((order, t, train.arg))
                if train.fn is not None:
                    self.landing(link, order, train, t)
                break
            ahead = <Link>links[k]
            if ahead.merges and not (self.run_ahead and (not self.heap.size() or t < self.heap[0].t)):
                flit.k = k; flit.number = number
                self.push(t, over, order, 3, flit, None)
                break
        self.reservations += k - first
        return 0
    cdef int land(self, Landing x) except -1:
        self.reached(self.now, x.link.priority, x.k)
        self.end(x.train)
        return 0
    cdef int arrive_last(self, Train train) except -1:
        train = train.front()
        cdef Link link = <Link>train.links[len(train.links) - 1]
        self.reached(self.now, link.priority, link.base + train.number)
        self.end(train)
        return 0
    cdef int end(self, Train train) except -1:
        cdef object fn = train.fn
        if fn is not None:
            if isinstance(fn, Callee):
                (<Callee>fn).landed(train.arg)
            else:
                fn(train.arg)
        if not train.each:
            train.out.clear(); train.ends.clear(); train.found.clear()
        return 0
    def told(self, Link link):
        coming = link.coming
        cdef int64_t p = link.priority, order, first, pt, pp, pk
        cdef Train train
        cdef int m, i
        cdef Seg* s
        cdef bint now_too
        if not coming:
            return
        self.reached(self.now, -1, -1)
        pt = self.lt; pp = self.lp; pk = self.lk
        while coming:
            order_, t_, what = coming[0]
            order = order_
            if t_ is not None:
                if t_ > pt or (t_ == pt and (p > pp or (p == pp and order > pk))):
                    return
                link.tell(what, ((t_, 0),), 0, 1)
            else:
                train = (<Train>what).front()
                first = train.told
                m = <int>train.ends.size()
                i = train.ends[m - 2] if m > 1 else 0
                s = train.out.data() + i; m = train.ends[m - 1] - i
                now_too = p < pp or (p == pp and order <= pk)
                train.told = come_before(s, m, train.n, pt + 1 if now_too else pt)
                if first < train.told:
                    link.tell(train.arg, tuple([(s[i].a, s[i].d) for i in range(m)]), first, train.told)
                if train.told < train.n:
                    return
            coming.popleft()
    def start(self, route, int64_t count, int64_t size, key, fn, arg, bint each, lines=None):
        cdef Train train = mk_train(<tuple>route.links, 0, count, size, 0, fn, arg, each)
        cdef Seg s
        if lines is None:
            s.a = self.now; s.d = 0
            train.lines.push_back(s)
        else:
            for a, d in lines:
                s.a = a; s.d = d
                train.lines.push_back(s)
        self.take(train, 0)
        return train
    cpdef Train put(self, tuple links, int64_t count, int64_t size, int64_t key, object fn, object arg, bint each):
        cdef Train train = mk_train(links, 0, count, size, 0, fn, arg, each)
        cdef Seg s
        s.a = self.now; s.d = 0
        train.lines.push_back(s)
        self.take(train, 0)
        return train
