cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._core cimport Core
from kernbench.sim_engine._network cimport Network
from kernbench.sim_engine._transaction cimport Reply, Transaction

cdef int _READ, _WRITE, CLOSED
cdef int64_t NEVER

cdef class DramAccess
cdef class Burst
cdef class Channel
cdef class DramSlice
cdef class DramRequest


cdef class Timing:
    cdef public int64_t access, act_bank, act_group, act_other, act_read, act_write, col_group, col_other, faw
    cdef public int64_t pre_act, act_pre, read_data, read_pre, read_queue, read_write, ref_bank, ref_every, ref_other
    cdef public int64_t write_data, write_group, write_high, write_low, write_other, write_pre, write_queue
    cdef public bint refresh_alone


@cython.final
cdef class BankGroup:
    cdef public int64_t act, read, write


@cython.final
cdef class Bank:
    cdef public int64_t act, pre, read, row, write
    cdef public BankGroup group
    cdef public list reads, writes
    cdef public DramAccess opener
    @cython.locals(access=DramAccess)
    cpdef DramAccess hit(self, list queue)


@cython.final
cdef class DramAccess:
    cdef public Burst burst
    cdef public Bank bank
    cdef public int64_t arrival, count, order, row
    cdef public int kind
    @cython.locals(burst=Burst, twin=Burst, other=DramAccess)
    cpdef DramAccess copy(self, dict copies)


@cython.final
cdef class Burst:
    cdef public DramRequest request
    cdef public int64_t left, end


@cython.final
cdef class DramRequest(Reply):
    cdef public dict ready_at


@cython.final
cdef class Channel:
    cdef public DramSlice owner
    cdef public Timing timing
    cdef public list groups, banks, active, ahead, numbers
    cdef public object waiting
    cdef public int64_t act, act_1, act_2, act_3, act_4, begun, served, rows, worked, read, write, clock, orders, busy, reads, writes, opened, refreshed, since, due, key
    cdef public bint drains
    @cython.locals(other=Channel, copies=dict, group=BankGroup, its=BankGroup, bank=Bank, twin=Bank, access=DramAccess)
    cpdef Channel split(self, list numbers)
    cpdef arrive(self, DramAccess access, int64_t t, int64_t key)
    @cython.locals(queued=int64_t, size=int64_t)
    cpdef bint has_room(self, DramAccess access)
    @cython.locals(bank=Bank, request=DramRequest, txn=Transaction)
    cpdef admit(self, DramAccess access, int64_t t)
    @cython.locals(
        kind=int, timing=Timing, first=int64_t, chosen=Bank, column=bint, refresh=int64_t, refreshing=Bank, t=int64_t,
        order=int64_t, soonest=int64_t, alone=bint, bank=Bank, hit=DramAccess, head=DramAccess, queue=list,
    )
    cpdef int64_t schedule(self, int64_t now, int64_t until)
    @cython.locals(every=int64_t, n=int64_t, behind=int64_t, bank=Bank)
    cpdef skip(self, int64_t now)
    cpdef int mode(self)
    cpdef refresh(self, Bank bank, int64_t t)
    @cython.locals(timing=Timing)
    cpdef row(self, Bank bank, int kind, int64_t t)
    @cython.locals(timing=Timing, group=BankGroup, access=DramAccess, burst=Burst)
    cpdef column(self, Bank bank, int kind, int64_t t)
    cpdef taken(self, DramAccess access, int64_t t)


cdef class DramSlice:
    cdef public Core core
    cdef public object memory
    cdef public Network network
    cdef public Timing timing
    cdef public int64_t n, line_bits, channel_bits, bank_bits, per_burst, per_row, piece, window, planned, groups, banks
    cdef public bint live
    cdef public list channels, of, patterns
    cpdef on_read(self, Transaction txn)
    cpdef on_write(self, Transaction txn)
    @cython.locals(
        now=int64_t, request=DramRequest, line=int64_t, channel=Channel, first=int64_t, burst=Burst, start=int64_t,
        row=int64_t, bank=int64_t, count=int64_t, access=DramAccess, accesses=list, number=int64_t, hashed=int64_t,
    )
    cdef _take(self, Transaction txn, int kind)
    cpdef int64_t _channel(self, int64_t line)
    @cython.locals(asked=list, line=int64_t, channel=Channel, bursts=list, others=list, number=int64_t)
    cdef _separate(self, lines)
    cdef _plan(self, int64_t t)
    @cython.locals(following=int64_t, channel=Channel)
    cpdef _continue(self, int64_t t)
    @cython.locals(txn=Transaction, ready=dict, count=int64_t)
    cdef done(self, DramRequest request, int64_t end, Channel channel)
    cpdef queued(self, Transaction txn)
    cpdef _release(self, DramRequest request)
